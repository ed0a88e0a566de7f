package mem_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/tiertest"
)

const mib = 1 << 20

func openMemory(t testing.TB, bytes int64) *mem.Memory {
	t.Helper()
	m, err := mem.Open(mem.Config{Arena: mem.ArenaConfig{Bytes: bytes}, DirtyBytes: bytes / 4}, mem.Deps{})
	require.NoError(t, err)
	return m
}

func format(t testing.TB, fsys vfs.FS) {
	t.Helper()
	_, err := disk.Format(fsys, "/d", tiertest.Cluster, rand.NewChaCha8([32]byte{1}))
	require.NoError(t, err)
}

// openDisk opens a device that reads into buffers of m.
func openDisk(t testing.TB, fsys vfs.FS, m *mem.Memory) *disk.Device {
	t.Helper()
	d, err := disk.Open(disk.Config{Dir: "/d", Cluster: tiertest.Cluster, SegmentBytes: 4 * mib, BallastBytes: -1,
		IndexCacheBytes: mib, ReclaimInterval: time.Hour}, disk.Deps{FS: fsys, Pool: m.Arena()})
	require.NoError(t, err)
	return d
}

// stack is memory over a device, with writers behind it.
type stack struct {
	*mem.Tier
	memory *mem.Memory
	end    func()
}

// open puts memory over what below returns.
func open(t testing.TB, bytes int64, below func(m *mem.Memory) mem.Lower) *stack {
	t.Helper()
	m := openMemory(t, bytes)
	s := &stack{memory: m, Tier: m.Over(below(m), tiertest.Cluster)}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = s.Run(ctx) // the test that injects faults checks which chunks could not be written
	}()
	require.Eventually(t, s.Admits, 10*time.Second, 100*time.Microsecond)
	var once sync.Once
	s.end = func() {
		once.Do(func() {
			cancel()
			<-ran
			require.NoError(t, s.Tier.Close())
			m.Close()
			require.Zero(t, m.Stats().Arena.InUseBytes, "memory that nobody gave back")
		})
	}
	t.Cleanup(s.end)
	return s
}

// taking puts chunks by Take, from buffers of the arena, at a level.
type taking struct {
	*stack
	level moraine.Level
}

func (k taking) Put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	aligned := uintptr(unsafe.Pointer(unsafe.SliceData(data)))%moraine.BlockSize == 0
	if len(data) == 0 || !aligned || cap(data)%moraine.BlockSize != 0 { // Take gets such buffers from the arena
		return k.Tier.Put(ctx, h, data, sums)
	}
	buf, err := k.memory.Arena().Get(ctx, len(data))
	if err != nil {
		return err
	}
	copy(buf.Bytes(), data)
	_, err = k.Take(ctx, h, buf, sums, k.level)
	return err
}

func (k taking) Close() error {
	k.end()
	return nil
}

// conformance opens each stack over a device of its own, and later over the same
// device.
func conformance(of func(*stack) tiers.Tier) func(t *testing.T) tiertest.Opened {
	return func(t *testing.T) tiertest.Opened {
		fsys := vfs.NewMem(1)
		format(t, fsys)
		make := func() *stack {
			return open(t, 96*mib, func(m *mem.Memory) mem.Lower { return openDisk(t, fsys, m) })
		}
		s := make()
		return tiertest.Opened{Tier: of(s), Reopen: func(t *testing.T) tiers.Tier {
			s.end()
			s = make()
			return of(s)
		}}
	}
}

func TestConformanceOfPuts(t *testing.T) {
	tiertest.Run(t, conformance(func(s *stack) tiers.Tier { return closing{s} }))
}

// closing ends the writers before it closes the tier.
type closing struct{ *stack }

func (c closing) Close() error { c.end(); return nil }

func TestConformanceOfTakes(t *testing.T) {
	tiertest.Run(t, conformance(func(s *stack) tiers.Tier { return taking{s, moraine.NVMe} }))
}

func TestConformanceOfTakesWrittenBehind(t *testing.T) {
	tiertest.Run(t, conformance(func(s *stack) tiers.Tier { return taking{s, moraine.Memory} }))
}

func memOverDisk(t testing.TB) *stack {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	return open(t, 96*mib, func(m *mem.Memory) mem.Lower { return openDisk(t, fsys, m) })
}

func take(t testing.TB, s *stack, c tiertest.Chunk, level moraine.Level) moraine.Level {
	t.Helper()
	buf, err := s.memory.Arena().Get(t.Context(), len(c.Data))
	require.NoError(t, err)
	copy(buf.Bytes(), c.Data)
	got, err := s.Take(t.Context(), c.Header, buf, c.Sums, level)
	require.NoError(t, err)
	return got
}

func id(n int) moraine.ChunkID { return moraine.ChunkID{Stripe: moraine.StripeID(n)} }

// TestWhatWasTakenIsReadFromMemory counts the reads that reach the device.
func TestWhatWasTakenIsReadFromMemory(t *testing.T) {
	reads := 0
	fsys := vfs.NewMem(1)
	format(t, fsys)
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, _ moraine.ChunkID) error {
			if c == tiertest.CallView {
				reads++
			}
			return nil
		})
	})
	a, b := tiertest.MakeChunk(t, id(1), 1, 300_001, 1), tiertest.MakeChunk(t, id(2), 1, mib, 2)
	require.Equal(t, moraine.NVMe, take(t, s, a, moraine.NVMe))
	require.NoError(t, b.Put(t, s))
	a.Check(t, s)
	v, err := s.View(t.Context(), a.Header.ID, 4097, 10_000)
	require.NoError(t, err)
	require.Equal(t, crc.Sum(a.Data[4097:14_097]), v.CRC)
	v.Release()
	v = s.LendCached(a.Header.ID, 4097, 10_000)
	require.NotNil(t, v)
	require.Equal(t, crc.Sum(a.Data[4097:14_097]), v.CRC)
	v.Release()
	require.Nil(t, s.LendCached(a.Header.ID, 300_000, 2), "the chunk ends before")
	require.Nil(t, s.LendCached(b.Header.ID, 0, 10), "it is on the device only")
	require.Zero(t, reads)
	for range 3 {
		b.Check(t, s) // the first read reads the whole chunk and caches it
	}
	require.Equal(t, 1, reads)
	_, err = s.Get(t.Context(), id(9), 0, nil)
	require.ErrorIs(t, err, moraine.NotFound)
}

// late deletes a chunk as soon as the device has it, before its put returns.
type late struct {
	mem.Lower
	deletes func(moraine.ChunkID) error
}

func (l *late) Put(ctx context.Context, h tiers.Header, data []byte, sums []uint32) error {
	if err := l.Lower.Put(ctx, h, data, sums); err != nil {
		return err
	}
	return l.deletes(h.ID)
}

// TestADeletionMeetsATake deletes a chunk while it is being taken. The chunk leaves
// memory too, and its memory is freed.
func TestADeletionMeetsATake(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	l := &late{}
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		l.Lower = openDisk(t, fsys, m)
		return l
	})
	l.deletes = func(id moraine.ChunkID) error { return s.Delete(t.Context(), id, 2) }
	take(t, s, tiertest.MakeChunk(t, id(1), 1, 100_000, 1), moraine.NVMe)
	_, err := s.Get(t.Context(), id(1), 0, nil)
	require.ErrorIs(t, err, moraine.NotFound)
	require.Zero(t, s.memory.Stats().Arena.InUseBytes)
	later := tiertest.MakeChunk(t, id(1), 2, 100_000, 2) // a version that the deletion does not cover
	take(t, s, later, moraine.NVMe)
	later.Check(t, s)
}

// TestMemoryThatRotsIsNotServed changes a byte of a cached chunk.
func TestMemoryThatRotsIsNotServed(t *testing.T) {
	s := memOverDisk(t)
	c := tiertest.MakeChunk(t, id(1), 1, 100_000, 1)
	take(t, s, c, moraine.NVMe)
	v, err := s.View(t.Context(), c.Header.ID, 50_000, 10)
	require.NoError(t, err)
	v.Data[3] ^= 1
	v.Release()
	require.Nil(t, s.LendCached(c.Header.ID, 50_000, 10))
	c.Check(t, s)
	require.Equal(t, crc.Sum(c.Data[49_000:60_000]), func() uint32 {
		got := make([]byte, 11_000)
		_, err := s.Get(t.Context(), id(1), 49_000, got)
		require.NoError(t, err)
		return crc.Sum(got)
	}())
}

// TestScansDoNotEvictHotChunks reads a few chunks repeatedly. Meanwhile it writes ten times
// the memory and reads that once, partly in pieces. The few chunks stay.
func TestScansDoNotEvictHotChunks(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	cold := map[moraine.ChunkID]int{}
	s := open(t, 32*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, id moraine.ChunkID) error {
			if c == tiertest.CallView {
				cold[id]++
			}
			return nil
		})
	})
	const hot = 4
	c := tiertest.MakeChunk(t, id(1), 1, 2*mib, 1)
	for n := range 90 {
		one := tiertest.ChunkOf(id(n+1), 1, c.Data)
		require.NoError(t, one.Put(t, s))
	}
	whole := make([]byte, 2*mib)
	get := func(n int) {
		_, err := s.Get(t.Context(), id(n), 0, whole)
		require.NoError(t, err)
	}
	for n := range 3 * hot {
		get(n%hot + 1)
	}
	for n := hot + 1; n <= 90; n++ {
		if n%2 == 0 {
			get(n) // caches it
		} else {
			again := tiertest.ChunkOf(id(n), 2, c.Data)
			take(t, s, again, moraine.NVMe)
			for off := int64(0); off < 2*mib; off += mib / 2 { // one pass, in pieces
				_, err := s.Get(t.Context(), id(n), off, whole[:mib/2])
				require.NoError(t, err)
			}
		}
		if n%10 == 0 {
			for h := range hot {
				get(h + 1)
			}
		}
	}
	for h := range hot {
		require.Equal(t, 1, cold[id(h+1)], "chunk %d was read again", h+1)
	}
}

// A chunk that was read from the device is counted with the head of its record, which lies in the same buffer: what
// is lent of the arena, and in no chunk, is in use by a request.
func TestACachedChunkIsCountedWithAllItsMemory(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	s := open(t, 32*mib, func(m *mem.Memory) mem.Lower { return openDisk(t, fsys, m) })
	for n, length := range []int{100, 4096, mib + 5} {
		c := tiertest.MakeChunk(t, id(n+1), 1, length, 1)
		require.NoError(t, s.Put(t.Context(), c.Header, c.Data, c.Sums))
		c.Check(t, s)
	}
	now := s.memory.Stats()
	require.Equal(t, 3, now.Chunks)
	require.Equal(t, now.Arena.InUseBytes, now.CleanBytes)
}
