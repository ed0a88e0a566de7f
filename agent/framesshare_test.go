package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// TestAUserLeavesMemoryForTheFramesOfOthers: one user alone takes half, the next half of the rest.
func TestAUserLeavesMemoryForTheFramesOfOthers(t *testing.T) {
	f := newFrames()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	fill := func(uid uint32) (n int) {
		for f.take(ended, uid, agentproto.MaxFrame) == nil {
			n++
		}
		return n
	}
	require.Equal(t, 4, fill(1))
	require.Equal(t, 2, fill(2))
	require.Equal(t, 1, fill(3))
	require.Zero(t, fill(4), "it waits")
	f.give(1, agentproto.MaxFrame)
	require.Equal(t, 1, fill(4))
}
