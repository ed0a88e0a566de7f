package mem_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// TestWritingBehindIsCalmWhileThereIsRoom counts the chunks that are written at the same time: two
// while less than half of the dirty memory is in use, and eight above that.
func TestWritingBehindIsCalmWhileThereIsRoom(t *testing.T) {
	fsys := vfs.NewMem(1)
	format(t, fsys)
	gate := make(chan struct{})
	var now atomic.Int32
	s := open(t, 96*mib, func(m *mem.Memory) mem.Lower {
		return tiertest.NewFault(openDisk(t, fsys, m), func(_ context.Context, c tiertest.Call, _ moraine.ChunkID) error {
			if c == tiertest.CallPut {
				now.Add(1)
				<-gate
			}
			return nil
		})
	})
	taken := 0
	fill := func(to int) {
		for ; taken < to; taken++ {
			require.Equal(t, moraine.Memory, take(t, s, tiertest.MakeChunk(t, id(taken+1), 1, mib, uint64(taken)), moraine.Memory))
		}
	}
	begun := func(n int32) {
		t.Helper()
		require.Eventually(t, func() bool { return now.Load() >= n }, 10*time.Second, time.Millisecond)
		time.Sleep(20 * time.Millisecond) // one more would have begun by now
		require.Equal(t, n, now.Load())
	}
	fill(12) // of 24
	begun(2)
	fill(20)
	begun(8)
	close(gate)
	require.NoError(t, s.SyncAll(t.Context()))
	require.EqualValues(t, 20, now.Load())
}
