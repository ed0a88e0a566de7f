package mem_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/tiertest"
)

func fault(kind moraine.Kind, cause error) error {
	return &moraine.Error{Op: "fault", Kind: kind, Err: cause}
}

// media are the ways in which the tier below fails, each in a share of the calls.
var media = map[string]func(rng *rand.Rand) error{
	"EIO":             func(*rand.Rand) error { return fault(moraine.IOError, syscall.EIO) },
	"EIO, reply lost": func(*rand.Rand) error { return tiertest.After(fault(moraine.IOError, syscall.EIO)) },
	"full":            func(*rand.Rand) error { return fault(moraine.NoSpace, syscall.ENOSPC) },
	"slow":            func(*rand.Rand) error { time.Sleep(time.Millisecond); return nil },
	"corrupt":         func(*rand.Rand) error { return fault(moraine.Corrupt, errors.New("bit rot")) },
	"any of these": func(rng *rand.Rand) error {
		switch rng.IntN(4) {
		case 0:
			return tiertest.After(fault(moraine.IOError, syscall.EIO))
		case 1:
			return fault(moraine.NoSpace, syscall.ENOSPC)
		default:
			time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
			return nil
		}
	},
}

// TestFaultsOfTheTierBelow runs random calls over a device that fails in each way.
// Puts go through memory.
func TestFaultsOfTheTierBelow(t *testing.T) {
	for name, fail := range media {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(4) {
				fsys := vfs.NewMem(seed)
				format(t, fsys)
				var armed atomic.Bool
				var mu sync.Mutex
				rng := rand.New(rand.NewPCG(seed, 9))
				rule := func(_ context.Context, c tiertest.Call, _ moraine.ChunkID) error {
					mu.Lock()
					defer mu.Unlock()
					if !armed.Load() || rng.IntN(12) != 0 || (name == "corrupt" && c != tiertest.CallView) {
						return nil
					}
					return fail(rng)
				}
				var reopen func(t *testing.T) tiertest.Faulty
				var s *stack
				reopen = func(t *testing.T) tiertest.Faulty {
					if s != nil {
						s.end()
					}
					s = open(t, 32*mib, func(m *mem.Memory) mem.Lower { return tiertest.NewFault(openDisk(t, fsys, m), rule) })
					var tier tiers.Tier = taking{s, moraine.NVMe}
					if name == "corrupt" {
						tier = s // chunks that were not taken are read from below
					}
					return tiertest.Faulty{Tier: tier, Arm: func() { armed.Store(true) },
						Disarm: func() { armed.Store(false) }, Reopen: reopen}
				}
				failed := tiertest.RunFaulty(t, seed, reopen)
				require.Equal(t, name == "slow", failed == 0, "%d calls failed", failed)
			}
		})
	}
}

// TestEndWritesWhatIsDirty takes chunks faster than a slow device writes them, and
// ends the tier. All chunks are on the device afterwards.
func TestEndWritesWhatIsDirty(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	gate, reached := make(chan struct{}), make(chan struct{})
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, of moraine.ChunkID) error {
			if c == tiertest.CallPut {
				if of == id(50) {
					close(reached)
				}
				<-gate
			}
			return nil
		})
	})
	var chunks []tiertest.Chunk
	for n := range 20 {
		c := tiertest.MakeChunk(t, id(n+1), 1, mib, uint64(n))
		require.Equal(t, moraine.Memory, take(t, s, c, moraine.Memory))
		c.Check(t, s)
		chunks = append(chunks, c)
	}
	require.EqualValues(t, 20, s.Usage().Chunks)
	require.EqualValues(t, 20*mib, s.memory.Stats().DirtyBytes)
	headers, err := s.List(t.Context(), moraine.ChunkID{}, 100)
	require.NoError(t, err)
	require.Len(t, headers, 20)
	// Past the limit a put waits for the device.
	late := make(chan moraine.Level, 1)
	over := tiertest.MakeChunk(t, id(50), 1, 8*mib, 50)
	go func() { late <- take(t, s, over, moraine.Memory) }()
	<-reached
	require.Empty(t, late)
	close(gate)
	require.Equal(t, moraine.NVMe, <-late)
	s.end()
	s = open(t, 96*mib, func(m *mem.Memory) mem.Lower { return openDisk(t, fsys, m) })
	for _, c := range append(chunks, over) {
		c.Check(t, s)
	}
}

// TestDirtyChunksAreChunks puts, replaces and deletes chunks while they are dirty.
func TestDirtyChunksAreChunks(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	gate, puts := make(chan struct{}), atomic.Int64{}
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, of moraine.ChunkID) error {
			if c == tiertest.CallPut && of == id(99) {
				puts.Add(1)
				<-gate // blocks one writer; eight of these block all writers
			}
			return nil
		})
	})
	var once sync.Once
	open := func() { once.Do(func() { close(gate) }) }
	t.Cleanup(open)
	k := taking{s, moraine.Memory}
	one, two := tiertest.MakeChunk(t, id(1), 1, 5000, 1), tiertest.MakeChunk(t, id(1), 2, 6000, 2)
	require.NoError(t, two.Put(t, k))
	require.ErrorIs(t, one.Put(t, k), moraine.Stale)
	require.NoError(t, two.Put(t, k), "again")
	require.ErrorIs(t, tiertest.MakeChunk(t, id(1), 2, 6000, 3).Put(t, k), moraine.Exists)
	two.Check(t, s)
	three := tiertest.MakeChunk(t, id(1), 3, 7000, 3)
	require.NoError(t, three.Put(t, k))
	three.Check(t, s)
	require.NoError(t, s.Sync(t.Context(), []moraine.ChunkID{id(1), id(7)}))
	require.NoError(t, s.Delete(t.Context(), id(1), 4))
	_, err := s.Get(t.Context(), id(1), 0, nil)
	require.ErrorIs(t, err, moraine.NotFound)

	held := tiertest.MakeChunk(t, id(99), 1, 5000, 9)
	require.NoError(t, held.Put(t, k))
	require.Eventually(t, func() bool { return puts.Load() == 1 }, 10*time.Second, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Sync(ctx, []moraine.ChunkID{id(99)}), moraine.Timeout)
	require.ErrorIs(t, s.Delete(ctx, id(99), 2), moraine.Timeout, "it is being written")
	open()
	require.NoError(t, s.Delete(t.Context(), id(99), 2))
	_, err = s.Get(t.Context(), id(99), 0, nil)
	require.ErrorIs(t, err, moraine.NotFound, "a chunk that was written behind its deletion came back")
	require.Zero(t, s.Usage().Chunks)
}

// TestADeviceThatFailsDuringWriteBehind acknowledges chunks in memory that the device then
// fails to write. The device goes out of service and reports it, and no such chunk
// counts as durable.
func TestADeviceThatFailsDuringWriteBehind(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, _ moraine.ChunkID) error {
			if c == tiertest.CallPut {
				return fault(moraine.IOError, syscall.EIO)
			}
			return nil
		})
	})
	c := tiertest.MakeChunk(t, id(1), 1, 5000, 1)
	require.Equal(t, moraine.Memory, take(t, s, c, moraine.Memory))
	require.ErrorIs(t, s.Sync(t.Context(), []moraine.ChunkID{id(1)}), moraine.IOError)
	require.ErrorIs(t, s.Err(), moraine.IOError)
	require.ErrorIs(t, tiertest.MakeChunk(t, id(2), 1, 5000, 2).Put(t, taking{s, moraine.Memory}), moraine.IOError)
	c.Check(t, s) // it stays readable while the process lives
}

// TestAFullDeviceIsTriedAgain takes chunks for which the device has no space at
// first.
func TestAFullDeviceIsTriedAgain(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	left := atomic.Int64{}
	left.Store(1)
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, _ moraine.ChunkID) error {
			if c == tiertest.CallPut && left.Add(-1) >= 0 {
				return fault(moraine.NoSpace, syscall.ENOSPC)
			}
			return nil
		})
	})
	c := tiertest.MakeChunk(t, id(1), 1, 5000, 1)
	require.Equal(t, moraine.Memory, take(t, s, c, moraine.Memory))
	require.NoError(t, s.Sync(t.Context(), []moraine.ChunkID{id(1)}))
}

// TestDirtyMemoryThatRotsIsNotServed flips random bits of chunks that are only in
// memory, before they are written to the device. The device stores the checksums of
// their arrival, so that no reader gets the damaged bytes.
func TestDirtyMemoryThatRotsIsNotServed(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 1))
	for range 10 {
		fsys, gate := vfs.NewMem(1), make(chan struct{})
		format(t, fsys)
		s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
			return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, _ moraine.ChunkID) error {
				if c == tiertest.CallPut {
					<-gate
				}
				return nil
			})
		})
		c := tiertest.MakeChunk(t, id(1), 1, 100_000, 1)
		require.Equal(t, moraine.Memory, take(t, s, c, moraine.Memory))
		at := rng.Int64N(100_000) / 4096 * 4096 // views begin at a block
		v, err := s.View(t.Context(), id(1), at, 100)
		require.NoError(t, err)
		v.Data[rng.IntN(100)] ^= 1 << rng.IntN(8)
		v.Release()
		close(gate)
		s.end()
		s = open(t, 96*mib, func(m *mem.Memory) mem.Lower { return openDisk(t, fsys, m) })
		_, err = s.Get(t.Context(), id(1), 0, make([]byte, 100_000))
		require.ErrorIs(t, err, moraine.Corrupt, "in the block at %d", at)
	}
}
