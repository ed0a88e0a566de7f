package chunkserver_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

func (f *fakeMeta) listMemory(op *wire.ListMemory) *wire.MetaResponse {
	among := func(steps []uint64) func(uint64) bool {
		return func(step uint64) bool { return !slices.Contains(steps, step) }
	}
	reply := &wire.MemoryReply{Write: slices.DeleteFunc(slices.Clone(op.DeferredFor), among(f.write)),
		Gone: slices.DeleteFunc(slices.Clone(op.DeferredFor), among(f.gone))}
	for _, c := range op.OfGone {
		if slices.Contains(f.dead, c.Stripe) {
			reply.Dead = append(reply.Dead, &wire.Deletion{Device: op.Device, Stripe: c.Stripe, Index: c.Index, Below: c.Version + 1})
		}
	}
	reply.At = op.After
	for _, c := range f.memory {
		switch {
		case uint64(c.Version) <= op.After:
		case len(reply.Chunks) == 2:
			reply.More = true
		default:
			f.listed++
			reply.At = uint64(c.Version)
			reply.Chunks = append(reply.Chunks, &wire.SettledChunk{Stripe: c.Stripe, Index: c.Index})
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Memory{Memory: reply}}
}

func (f *fakeMeta) settle(op *wire.SettleChunks) (*wire.MetaResponse, error) {
	if op.Epoch != f.epochs[op.Device] {
		return nil, &moraine.Error{Op: "fake", Kind: moraine.Stale}
	}
	for _, c := range op.Chunks {
		f.settled = append(f.settled, c)
		f.memory = slices.DeleteFunc(f.memory, func(m *wire.SettledChunk) bool { return m.Stripe == c.Stripe && m.Index == c.Index })
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, nil
}

// record makes the metadata service record a chunk as in memory, as its commit
// does.
func (f *fakeMeta) record(chunks ...testChunk) {
	f.set(func() {
		for _, c := range chunks {
			f.recorded++
			f.memory = append(f.memory, &wire.SettledChunk{Stripe: c.req.Stripe, Index: c.req.Index, Version: f.recorded})
		}
	})
}

// gate blocks writes to segments while it is shut.
type gate struct {
	mu   sync.Mutex
	open *sync.Cond
	shut bool
	gone bool // the process was killed
}

// close shuts the gate of a started server until the test ends.
func (g *gate) close(t *testing.T) {
	g.set(true, false)
	t.Cleanup(func() { g.set(false, false) })
}

func newGate() *gate {
	g := &gate{}
	g.open = sync.NewCond(&g.mu)
	return g
}

func (g *gate) set(shut, gone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.gone = shut, gone
	g.open.Broadcast()
}

func (g *gate) over(fs vfs.FS) vfs.FS {
	return vfs.NewFault(fs, func(op vfs.Op) error {
		if op.Kind != vfs.OpWrite || !strings.Contains(op.Path, "segments") {
			return nil
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for g.shut && !g.gone {
			g.open.Wait()
		}
		if g.gone {
			return errors.New("the process is gone")
		}
		return nil
	})
}

func inMemory(n uint64, length int) testChunk {
	c := chunk(n, length)
	c.req.Level = uint32(moraine.Memory)
	return c
}

// A put at level memory is answered before the device has the chunk, under the boot
// epoch of the device. The chunk is read from memory, and settled once the device
// has it.
func TestAPutAtLevelMemoryIsWrittenBehind(t *testing.T) {
	g, meta := newGate(), newFakeMeta()
	h := start(t, g.over(vfs.NewMem(1)), meta, config("/a"))
	g.close(t)
	chunks := []testChunk{inMemory(1, 300_001), inMemory(2, 5), inMemory(3, 1<<20), inMemory(4, 4096)}
	for _, c := range chunks {
		reply, err := c.put(t, h)
		require.NoError(t, err)
		require.Equal(t, uint32(moraine.Memory), reply.Level)
		require.Equal(t, uint64(1), reply.Epoch)
		c.check(t, h)
	}
	bad := inMemory(5, 1000)
	bad.data[7] ^= 1
	_, err := bad.put(t, h)
	require.ErrorIs(t, err, moraine.Corrupt, "it is verified before it is acknowledged")
	meta.record(chunks...)
	h.waitFor(t, func() bool { return meta.looked > 3 })
	require.Empty(t, meta.settledChunks(), "what is in memory still was said to be settled")
	g.set(false, false)
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	for _, c := range meta.settledChunks() {
		require.False(t, c.Gone)
		i := slices.IndexFunc(chunks, func(x testChunk) bool { return x.req.Stripe == c.Stripe })
		require.Equal(t, chunks[i].req.Crc, c.Crc)
		require.Equal(t, chunks[i].req.Version, c.Version)
	}
	_, err = h.SyncDevices(t.Context(), &wire.SyncDevices{})
	require.NoError(t, err)
	reply, err := chunks[0].put(t, h) // the first answer was lost
	require.NoError(t, err)
	require.Equal(t, uint32(moraine.NVMe), reply.Level)
}

// laterClock is the system's clock, set ahead.
type laterClock struct {
	clock.System
	ahead atomic.Int64 // nanoseconds
}

func (c *laterClock) Now() time.Time { return c.System.Now().Add(time.Duration(c.ahead.Load())) }

func (c *laterClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// TestRottenMemoryIsNotReportedDurable: a bit flips while a chunk is only in memory
// for 10 s, and the device gets the chunk with the checksums of its arrival. The
// stripe has one copy less than its record says. The server reports that at once,
// not only at the next scrub.
func TestRottenMemoryIsNotReportedDurable(t *testing.T) {
	g, meta, later := newGate(), newFakeMeta(), &laterClock{}
	h := startDeps(t, meta, config("/a"), chunkserver.Deps{Meta: meta, FS: g.over(vfs.NewMem(1)), Clock: later})
	g.close(t)
	// All writers of the device are busy, so that the next chunks stay in memory.
	for n := range uint64(8) {
		_, err := inMemory(100+n, 5).put(t, h)
		require.NoError(t, err)
	}
	right, rotten := inMemory(1, 300_001), inMemory(2, 300_001)
	for _, c := range []testChunk{right, rotten} {
		_, err := c.put(t, h)
		require.NoError(t, err)
	}
	_, data, release, err := h.GetChunk(t.Context(), rotten.get(0, 300_001))
	require.NoError(t, err)
	data[0][123_456] ^= 4 // in the server's own memory
	release()
	meta.record(right, rotten)
	later.ahead.Store(int64(11 * time.Second))
	g.set(false, false)
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	for _, c := range meta.settledChunks() {
		require.Equal(t, c.Stripe == rotten.req.Stripe, c.Gone)
	}
	// Its intact blocks stay readable, in case no other copy is left.
	_, data, release, err = h.GetChunk(t.Context(), rotten.get(0, 4096))
	require.NoError(t, err)
	require.Equal(t, rotten.data[:4096], data[0])
	release()
}

// Chunks that are dirty when the server is stopped are on the device when it
// has stopped.
func TestTheEndWritesWhatIsDirty(t *testing.T) {
	fs, g, meta := vfs.NewMem(1), newGate(), newFakeMeta()
	h := start(t, g.over(fs), meta, config("/a"))
	g.close(t)
	chunks := []testChunk{inMemory(1, 300_001), inMemory(2, 5)}
	for _, c := range chunks {
		reply, err := c.put(t, h)
		require.NoError(t, err)
		require.Equal(t, uint32(moraine.Memory), reply.Level)
	}
	meta.record(chunks...)
	ended := make(chan error)
	go func() { ended <- h.stop() }()
	g.set(false, false)
	require.NoError(t, <-ended)
	h = start(t, fs, meta, config("/a"))
	for _, c := range chunks {
		c.check(t, h)
	}
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	for _, c := range meta.settledChunks() {
		require.False(t, c.Gone)
	}
}

// The next process reports chunks that it does not find as gone, and serves no byte
// of them.
func TestChunksLostWithAKilledServerAreReported(t *testing.T) {
	fs, g, meta := vfs.NewMem(1), newGate(), newFakeMeta()
	h := start(t, g.over(fs), meta, config("/a"))
	kept, lost := inMemory(1, 300_001), inMemory(2, 5)
	_, err := kept.put(t, h)
	require.NoError(t, err)
	_, err = h.SyncDevices(t.Context(), &wire.SyncDevices{})
	require.NoError(t, err)
	g.close(t)
	reply, err := lost.put(t, h)
	require.NoError(t, err)
	require.Equal(t, uint32(moraine.Memory), reply.Level)
	after := fs.Clone() // as the next process finds it
	g.set(true, true)
	require.Error(t, h.stop(), "what was acknowledged and could not be written is an error")
	meta.record(kept, lost)
	h = start(t, after, meta, config("/a"))
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	for _, c := range meta.settledChunks() {
		require.Equal(t, c.Stripe == lost.req.Stripe, c.Gone)
	}
	kept.check(t, h)
	_, _, _, err = h.GetChunk(t.Context(), lost.get(0, 5))
	require.ErrorIs(t, err, moraine.NotFound)
}

// A put that exceeds the limit of dirty memory is answered once the device has the
// chunk. A test of tiers/mem shows that the limit counts all chunks.
func TestDirtyMemoryIsBounded(t *testing.T) {
	cfg := config("/a")
	cfg.DirtyBytes = 1 << 20
	h := start(t, vfs.NewMem(1), newFakeMeta(), cfg)
	reply, err := inMemory(1, 2<<20).put(t, h)
	require.NoError(t, err)
	require.Equal(t, uint32(moraine.NVMe), reply.Level)
	reply, err = inMemory(2, 5).put(t, h)
	require.NoError(t, err)
	require.Equal(t, uint32(moraine.Memory), reply.Level)
}

// A scrub reads the devices, and does not count a chunk as missing that is being
// written to one.
func TestAScrubKnowsOfWhatIsOnItsWay(t *testing.T) {
	g, meta, cfg := newGate(), newFakeMeta(), config("/a")
	cfg.ScrubInterval, cfg.ReportInterval = 1, 1<<40
	h := start(t, g.over(vfs.NewMem(1)), meta, cfg)
	g.close(t)
	c := inMemory(1, 300_001)
	_, err := c.put(t, h)
	require.NoError(t, err)
	var had, scrubs int
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, done bool) error {
			if r := req.GetReportChunks(); r.GetScrub() && done {
				scrubs++
				had += len(r.Chunks)
			}
			if req.GetHeartbeat() != nil && done {
				meta.scrubNow = true
			}
			return nil
		}
	})
	h.waitFor(t, func() bool { return scrubs >= 2 })
	meta.set(func() { require.Equal(t, scrubs, had) })
	g.set(false, false)
}

// TestReportedChunksAreVerified: what a client reported as bad is verified, and reported as the part
// of the device that the stripe is: a good chunk as present, one that is not there as missing.
func TestReportedChunksAreVerified(t *testing.T) {
	meta, cfg := newFakeMeta(), config("/a")
	cfg.ScrubInterval, cfg.ReportInterval = 1<<40, 1<<40
	h := start(t, vfs.NewMem(1), meta, cfg)
	c := inMemory(7, 300_001)
	_, err := c.put(t, h)
	require.NoError(t, err)
	var slices []*wire.ReportChunks
	var bad int
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, done bool) error {
			if r := req.GetReportChunks(); r.GetScrub() && done {
				slices = append(slices, r)
			}
			bad += len(req.GetReportBadChunks().GetChunks())
			return nil
		}
		meta.suspects = []*wire.SuspectChunk{{Device: 1, Stripe: 1<<40 + 7}, {Device: 1, Stripe: 1<<40 + 8}, {Device: 99, Stripe: 1<<40 + 7}, {Device: 1, Stripe: 1<<40 + 9, Parity: true}}
	})
	h.waitFor(t, func() bool { return len(slices) == 3 })
	meta.set(func() {
		for i, r := range slices {
			require.Equal(t, []uint64{1<<40 + 7 + uint64(i), 1<<40 + 8 + uint64(i)}, []uint64{r.From, r.To})
			require.EqualValues(t, 1, r.Device)
			require.Equal(t, i == 0, len(r.Chunks) == 1)
		}
		require.Zero(t, bad)
	})
}

func (f *fakeMeta) settledChunks() []*wire.SettledChunk {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.settled)
}

// TestASettlePassReadsWhatIsNew: with many chunks in memory, a pass lists those that were recorded since the
// last one, and reports those that have left the memory. An error, and a registration, make it read all.
func TestASettlePassReadsWhatIsNew(t *testing.T) {
	meta := newFakeMeta()
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	const many = 40
	var chunks []testChunk
	for n := range uint64(many + 2) {
		c := inMemory(n+1, 100)
		c.req.DeferredFor = n + 1
		_, err := c.put(t, h)
		require.NoError(t, err)
		chunks = append(chunks, c)
	}
	listed := func() (n int) {
		meta.set(func() { n = meta.listed })
		return n
	}
	meta.record(chunks[:many]...)
	h.waitFor(t, func() bool { return meta.listed == many })
	h.looks(t, meta)
	require.Equal(t, many, listed())
	meta.record(chunks[many])
	h.looks(t, meta)
	require.Equal(t, many+1, listed())

	// The steps of a chunk in the middle and of one that was not recorded yet rise.
	meta.set(func() { meta.write = []uint64{10, many + 2} })
	h.waitFor(t, func() bool { return len(meta.memory) == many })
	meta.record(chunks[many+1])
	h.waitFor(t, func() bool { return len(meta.settled) == 2 })
	require.Equal(t, chunks[9].req.Stripe, meta.settledChunks()[0].Stripe)
	require.Equal(t, many+2, listed())

	var failed bool
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, done bool) error {
			if req.GetListMemory() != nil && done && !failed {
				failed = true
				return &moraine.Error{Op: "fake", Kind: moraine.Unavailable}
			}
			return nil
		}
	})
	h.waitFor(t, func() bool { return meta.listed == 2*many+2 })
	meta.set(func() { meta.unknown = true })
	h.waitFor(t, func() bool { return meta.listed == 3*many+2 })
	meta.set(func() {
		for _, c := range meta.settled {
			require.False(t, c.Gone)
		}
	})
}
