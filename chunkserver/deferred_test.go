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
