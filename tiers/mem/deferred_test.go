package mem_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// counted is memory over a device whose puts are counted.
type counted struct {
	*stack
	fs   *vfs.Mem
	puts atomic.Int64
}

func overCounted(t *testing.T) *counted {
	t.Helper()
	c := &counted{fs: vfs.NewMem(1)}
	format(t, c.fs)
	c.stack = open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, c.fs, m), func(_ context.Context, call tiertest.Call, _ moraine.ChunkID) error {
			if call == tiertest.CallPut {
				c.puts.Add(1)
			}
			return nil
		})
	})
	return c
}

// takeFor takes a chunk whose write is deferred for a step.
func (c *counted) takeFor(t *testing.T, ch tiertest.Chunk, step uint64) moraine.Level {
	t.Helper()
	buf, err := c.memory.Arena().Get(t.Context(), len(ch.Data))
	require.NoError(t, err)
	copy(buf.Bytes(), ch.Data)
	level, err := c.TakeDeferred(t.Context(), ch.Header, buf, ch.Sums, step)
	require.NoError(t, err)
	return level
}

// written waits until so many puts have reached the device, and all that is not deferred is there.
func (c *counted) written(t *testing.T, puts int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := c.memory.Stats()
		return s.DirtyBytes == s.DeferredBytes && c.puts.Load() == puts
	}, 10*time.Second, time.Millisecond, "puts of the device")
}

// A deferred chunk is read from memory and never written, until its step rises, somebody syncs it, or
// the tier ends. Nothing of it is lost.
func TestADeferredChunkIsWrittenWhenItsStepRises(t *testing.T) {
	c := overCounted(t)
	var chunks []tiertest.Chunk
	for n := range 6 {
		ch := tiertest.MakeChunk(t, id(n+1), 1, mib, uint64(n))
		require.Equal(t, moraine.Memory, c.takeFor(t, ch, uint64(10+n/2)))
		ch.Check(t, c)
		chunks = append(chunks, ch)
	}
	require.Equal(t, moraine.Memory, take(t, c.stack, tiertest.MakeChunk(t, id(50), 1, mib, 50), moraine.Memory))
	c.written(t, 1) // the one that is not deferred
	require.Equal(t, []uint64{10, 11, 12}, c.Deferred().Steps())
	require.EqualValues(t, 6*mib, c.memory.Stats().DeferredBytes)

	c.Deferred().Write(func(_ moraine.ChunkID, step uint64) bool { return step == 11 })
	c.written(t, 3)
	require.NoError(t, c.Sync(t.Context(), []moraine.ChunkID{id(5)}))
	c.written(t, 4)
	require.Equal(t, []uint64{10, 12}, c.Deferred().Steps())
	for n, level := range []moraine.Level{moraine.Memory, moraine.Memory, moraine.NVMe, moraine.NVMe, moraine.NVMe, moraine.Memory} {
		_, got, err := c.Where(t.Context(), id(n+1))
		require.NoError(t, err)
		require.Equal(t, level, got, "chunk %d", n+1)
	}

	require.NoError(t, c.Delete(t.Context(), id(6), 2))
	require.Equal(t, []uint64{10}, c.Deferred().Steps())
	_, _, err := c.Where(t.Context(), id(6))
	require.ErrorIs(t, err, moraine.NotFound)
	c.written(t, 4)

	c.end()
	require.EqualValues(t, 6, c.puts.Load(), "the end writes what is deferred, and not what was deleted")
	next := open(t, 96*mib, func(m *mem.Memory) mem.Lower { return openDisk(t, c.fs, m) })
	for _, ch := range chunks[:5] {
		ch.Check(t, next)
	}
}

// More deferred chunks than three quarters of the dirty memory (24 MiB): the oldest are written, one for
// each that is too much. All are readable.
func TestTheOldestDeferredChunksAreWrittenWhenMemoryIsShort(t *testing.T) {
	c := overCounted(t)
	var chunks []tiertest.Chunk
	for n := range 25 {
		ch := tiertest.MakeChunk(t, id(n+1), 1, mib, uint64(n))
		require.Equal(t, moraine.Memory, c.takeFor(t, ch, uint64(1+n)))
		chunks = append(chunks, ch)
		c.written(t, int64(max(0, n+1-18)))
	}
	require.EqualValues(t, 7, c.memory.Stats().Pressed)
	steps := c.Deferred().Steps()
	require.Equal(t, uint64(8), steps[0], "the oldest go first")
	require.Len(t, steps, 18)
	for _, ch := range chunks {
		ch.Check(t, c)
	}

	// Somebody else takes all other memory: a call that waits gets that of deferred chunks.
	var bufs []*bufpool.Buffer
	for c.memory.Stats().DeferredBytes > 10*mib {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		b, err := c.memory.Arena().Get(ctx, 4*mib)
		cancel()
		require.NoError(t, err)
		bufs = append(bufs, b)
	}
	require.Greater(t, c.puts.Load(), int64(7))
	for _, b := range bufs {
		b.Release()
	}
	for _, ch := range chunks {
		ch.Check(t, c)
	}
}

// A version of a chunk that replaces a deferred one ends its wait, and nobody keeps its memory: the end of
// the stack checks that.
func TestADeferredChunkIsReplaced(t *testing.T) {
	c := overCounted(t)
	first, second := tiertest.MakeChunk(t, id(1), 1, mib, 1), tiertest.MakeChunk(t, id(1), 2, mib, 2)
	require.Equal(t, moraine.Memory, c.takeFor(t, first, 7))
	require.Equal(t, moraine.Memory, c.takeFor(t, first, 7), "its answer was lost")
	require.Equal(t, moraine.Memory, c.takeFor(t, second, 8))
	require.Equal(t, []uint64{8}, c.Deferred().Steps())
	second.Check(t, c)
	c.written(t, 0)
	require.Equal(t, moraine.NVMe, take(t, c.stack, tiertest.MakeChunk(t, id(1), 3, mib, 3), moraine.NVMe))
	require.Empty(t, c.Deferred().Steps())
	c.written(t, 1)
}

// Drop gives memory back at once, and leaves what is on the device, what is of a later version, and what was
// never deferred.
func TestDroppedChunksAreThoseThatWereNeverWritten(t *testing.T) {
	c := overCounted(t)
	chunk := func(n int, version moraine.LayoutVersion) tiertest.Chunk {
		return tiertest.MakeChunk(t, id(n), version, mib, uint64(n))
	}
	require.Equal(t, moraine.NVMe, take(t, c.stack, chunk(3, 1), moraine.NVMe))
	for n, version := range map[int]moraine.LayoutVersion{1: 1, 2: 1, 3: 2, 4: 5} {
		require.Equal(t, moraine.Memory, c.takeFor(t, chunk(n, version), 7))
	}
	require.NoError(t, c.Sync(t.Context(), []moraine.ChunkID{id(2)}))
	require.Len(t, c.Deferred().Of(func(step uint64) bool { return step == 7 }), 3)
	_, _, _ = c.Left()
	view, err := c.View(t.Context(), id(1), 0, mib)
	require.NoError(t, err)
	var all []tiers.Deletion
	for n := range 5 {
		all = append(all, tiers.Deletion{ID: id(n + 1), Below: 3})
	}
	dropped, err := c.Deferred().Drop(t.Context(), all)
	require.NoError(t, err)
	require.Equal(t, all[:1], dropped)
	require.Equal(t, chunk(1, 1).Data, view.Data, "a reader keeps it")
	view.Release()
	_, _, err = c.Where(t.Context(), id(1))
	require.ErrorIs(t, err, moraine.NotFound)
	for n, version := range map[int]moraine.LayoutVersion{2: 1, 3: 2, 4: 5} {
		chunk(n, version).Check(t, c)
	}
	require.EqualValues(t, 2*mib, c.memory.Stats().DeferredBytes)
	written, deleted, missed := c.Left()
	require.Empty(t, written)
	require.Equal(t, []moraine.ChunkID{id(1)}, deleted)
	require.False(t, missed)
	c.written(t, 2)
}

// Left names each chunk that has stopped being dirty, once, and says which of them were deleted.
func TestLeftNamesWhatIsNotDirtyAnyMore(t *testing.T) {
	c := overCounted(t)
	for n := range 4 {
		require.Equal(t, moraine.Memory, c.takeFor(t, tiertest.MakeChunk(t, id(n+1), 1, mib, 1), 7))
	}
	written, deleted, _ := c.Left()
	require.Empty(t, written)
	require.Empty(t, deleted)
	require.NoError(t, c.Sync(t.Context(), []moraine.ChunkID{id(1)}))
	require.NoError(t, c.DeleteAll(t.Context(), []tiers.Deletion{{ID: id(2), Below: 2}}))
	require.NoError(t, c.Delete(t.Context(), id(3), 2))
	written, deleted, _ = c.Left()
	require.ElementsMatch(t, []moraine.ChunkID{id(1), id(3)}, written)
	require.Equal(t, []moraine.ChunkID{id(2)}, deleted)
	written, deleted, _ = c.Left()
	require.Empty(t, written)
	require.Empty(t, deleted)
}
