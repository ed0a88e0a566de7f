package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// What a trainer that wants to do harm sends.

// TestASealThatNamesBytesTwiceIsRefused: the agent would need sums without bound, and write the bytes as often. The
// part can still be sealed.
func TestASealThatNamesBytesTwiceIsRefused(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	const bytes = 1 << 20
	require.NoError(t, p.begin(1, bytes))
	req := &agentproto.Seal{Step: 1}
	for range 3 {
		req.Tensors = append(req.Tensors, agentproto.Tensor{Name: "w", DType: "U8", Shape: []int64{bytes}, Bytes: bytes})
	}
	err := p.ask(&agentproto.Request{Seal: req})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "overlap")
	req.Tensors, req.Blobs = req.Tensors[:1], []agentproto.Blob{{Name: "a", Bytes: bytes}, {Name: "b", At: 1, Bytes: bytes}}
	require.ErrorContains(t, p.ask(&agentproto.Request{Seal: req}), "overlap")
	require.NoError(t, p.seal(1, bytes))
	require.NoError(t, n.wait(1))
}
