package mem_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// TestChunksThatFindNoSpaceDelayNoOthers: while chunks wait for space on a device, the writers behind write other
// chunks of that device, and those of other devices. The chunks that wait are written when there is space.
func TestChunksThatFindNoSpaceDelayNoOthers(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	fsys := vfs.NewMem(1)
	format(t, fsys)
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, of moraine.ChunkID) error {
			if c == tiertest.CallPut && full.Load() && of.Stripe <= id(3).Stripe {
				return fault(moraine.NoSpace, syscall.ENOSPC)
			}
			return nil
		})
	})
	for n := range 5 {
		require.Equal(t, moraine.Memory, take(t, s, tiertest.MakeChunk(t, id(n+1), 1, mib, uint64(n)), moraine.Memory))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, s.Sync(ctx, []moraine.ChunkID{id(4), id(5)}))
	for n := range 3 {
		require.True(t, s.Dirty(id(n+1)))
	}
	// Another device of the host, whose memory is the same.
	other := vfs.NewMem(2)
	format(t, other)
	next := s.memory.Over(openDisk(t, other, s.memory), tiertest.Cluster)
	running, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	next.Admit()
	go func() { ended <- next.Run(running) }()
	second := &stack{memory: s.memory, Tier: next}
	for n := range 3 {
		require.Equal(t, moraine.Memory, take(t, second, tiertest.MakeChunk(t, id(n+1), 1, mib, uint64(n)), moraine.Memory))
	}
	require.NoError(t, next.SyncAll(ctx))
	require.True(t, s.Dirty(id(1)))
	full.Store(false)
	require.NoError(t, s.SyncAll(ctx))
	end()
	require.NoError(t, <-ended)
	require.NoError(t, next.Close())
}
