package chunkserver_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// deferredFor is a chunk of a step that stays in memory.
func deferredFor(step, n uint64) testChunk {
	c := inMemory(n, 300_001)
	c.req.DeferredFor = step
	return c
}

// looks waits until the server has read the list of its chunks in memory a few times more.
func (h *host) looks(t *testing.T, meta *fakeMeta) {
	t.Helper()
	var from int
	meta.set(func() { from = meta.looked })
	h.waitFor(t, func() bool { return meta.looked > from+3 })
}

// beats waits until the server has sent a few heartbeats more.
func (h *host) beats(t *testing.T, meta *fakeMeta) {
	t.Helper()
	var from int
	meta.set(func() { from = len(meta.beats) })
	h.waitFor(t, func() bool { return len(meta.beats) > from+3 })
}

// TestDeferredChunksAreNotWritten: a device gets no byte of a chunk whose step stays in memory, before
// the metadata service says that the step rises. If the step is removed, its chunks wait for their deletion,
// and one that is still recorded a minute later is written. The end of the server writes all.
func TestDeferredChunksAreNotWritten(t *testing.T) {
	var writes atomic.Int64
	fs, meta, later := vfs.NewMem(1), newFakeMeta(), &laterClock{}
	counting := vfs.NewFault(fs, func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite && strings.Contains(op.Path, "segments") {
			writes.Add(1)
		}
		return nil
	})
	h := startDeps(t, meta, config("/a"), chunkserver.Deps{Meta: meta, FS: counting, Clock: later})
	formatted := writes.Load()
	chunks := []testChunk{deferredFor(71, 1), deferredFor(71, 2), deferredFor(72, 3), deferredFor(72, 4), deferredFor(73, 5)}
	for _, c := range chunks {
		reply, err := c.put(t, h)
		require.NoError(t, err)
		require.Equal(t, uint32(moraine.Memory), reply.Level)
		require.Equal(t, uint64(1), reply.Epoch)
		c.check(t, h)
	}
	meta.record(chunks[:3]...)
	h.looks(t, meta)
	require.Equal(t, formatted, writes.Load(), "a device was written")
	require.Empty(t, meta.settledChunks())

	meta.set(func() { meta.write = []uint64{71} })
	h.waitFor(t, func() bool { return len(meta.memory) == 1 })
	for _, c := range meta.settledChunks() {
		require.False(t, c.Gone)
		require.Less(t, c.Stripe, chunks[2].req.Stripe)
	}
	risen := writes.Load()
	require.Greater(t, risen, formatted)

	meta.set(func() { meta.gone = []uint64{72} })
	h.looks(t, meta)
	later.ahead.Store(int64(59 * time.Second))
	h.looks(t, meta)
	require.Equal(t, risen, writes.Load(), "chunks of a removed step were written")
	later.ahead.Store(int64(62 * time.Second))
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	require.Equal(t, chunks[2].req.Stripe, meta.settledChunks()[2].Stripe)
	require.False(t, meta.settledChunks()[2].Gone)

	require.NoError(t, h.stop())
	meta.set(func() { meta.settled = nil })
	h = start(t, fs, meta, config("/a"))
	meta.record(chunks...)
	for _, c := range chunks {
		c.check(t, h)
	}
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	for _, c := range meta.settledChunks() {
		require.False(t, c.Gone)
	}
}

// TestDeferredChunksGiveWayWhenMemoryIsShort: deferred chunks have three quarters of the dirty memory. The
// oldest are written when more arrive, and all are readable.
func TestDeferredChunksGiveWayWhenMemoryIsShort(t *testing.T) {
	meta, cfg := newFakeMeta(), config("/a")
	cfg.DirtyBytes = 4 << 20
	h := start(t, vfs.NewMem(1), meta, cfg)
	var chunks []testChunk
	for n := range uint64(20) {
		c := deferredFor(71, n+1)
		_, err := c.put(t, h)
		require.NoError(t, err)
		chunks = append(chunks, c)
		meta.record(c)
		h.waitFor(t, func() bool { return len(meta.memory) <= 10 }) // 3 MiB of 300,001 bytes, in blocks
	}
	meta.set(func() {
		require.Len(t, meta.memory, 10)
		require.Equal(t, chunks[10].req.Stripe, meta.memory[0].Stripe, "the oldest go first")
	})
	for _, c := range chunks {
		c.check(t, h)
	}
	_, err := h.SyncDevices(t.Context(), &wire.SyncDevices{})
	require.NoError(t, err)
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
}

// TestEveryStepWithDeferredChunksIsNamed: of more steps than one pass names, the one with the highest
// number rises, too.
func TestEveryStepWithDeferredChunksIsNamed(t *testing.T) {
	meta := newFakeMeta()
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	const steps = 1030
	var last testChunk
	for n := range uint64(steps) {
		last = inMemory(n+1, 100)
		last.req.DeferredFor = n + 1
		_, err := last.put(t, h)
		require.NoError(t, err)
	}
	meta.record(last)
	meta.set(func() { meta.write = []uint64{steps} })
	h.waitFor(t, func() bool { return len(meta.memory) == 0 })
	require.False(t, meta.settledChunks()[0].Gone)
}

// dropped counts the chunks that the server has reported as dropped from memory alone.
func (f *fakeMeta) dropped() (n int) {
	for _, d := range f.acked {
		if d.InMemory {
			n++
		}
	}
	return n
}

// TestDeadChunksInMemoryGiveTheirMemoryBack: when the metadata service says that a deferred chunk of a removed step
// is dead, its memory comes back without a write of the device, and without a wait. A reader that has it keeps it. A
// put that arrives late does not bring it back. A lost answer is repeated. A chunk that was written meanwhile stays,
// until it is deleted as others are.
func TestDeadChunksInMemoryGiveTheirMemoryBack(t *testing.T) {
	meta := newFakeMeta()
	h := start(t, vfs.NewMem(1), meta, config("/a"))
	chunks := []testChunk{deferredFor(71, 1), deferredFor(71, 2), deferredFor(72, 3)}
	for _, c := range chunks {
		_, err := c.put(t, h)
		require.NoError(t, err)
	}
	_, data, release, err := h.GetChunk(t.Context(), chunks[0].get(0, 300_001))
	require.NoError(t, err)
	lost := 0
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, done bool) error {
			if req.GetDeletedChunks() != nil && done {
				if lost++; lost == 1 {
					return &moraine.Error{Op: "fake", Kind: moraine.Unavailable}
				}
			}
			return nil
		}
		meta.gone = []uint64{71}
		meta.dead = []uint64{chunks[0].req.Stripe, chunks[1].req.Stripe, chunks[2].req.Stripe}
	})
	h.waitFor(t, func() bool { return meta.dropped() == 4 }) // each twice, since an answer was lost
	require.Equal(t, chunks[0].data, data[0], "the reader has it")
	release()
	for _, c := range chunks[:2] {
		_, _, _, err := h.GetChunk(t.Context(), c.get(0, 5))
		require.ErrorIs(t, err, moraine.NotFound)
	}
	require.EqualValues(t, 1, h.InUse()["chunks kept in memory"])
	chunks[2].check(t, h) // its step is not gone

	_, err = chunks[1].put(t, h)
	require.NoError(t, err)
	h.waitFor(t, func() bool { return meta.dropped() == 5 })

	_, err = h.SyncDevices(t.Context(), &wire.SyncDevices{})
	require.NoError(t, err)
	meta.set(func() { meta.gone = []uint64{71, 72} })
	h.beats(t, meta)
	meta.set(func() { require.Equal(t, 5, meta.dropped()) })
	chunks[2].check(t, h)
}
