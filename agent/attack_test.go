package agent_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

// TestALongReasonIsCut: nothing that a trainer says stays in the agent, or in the answers of others, whole.
func TestALongReasonIsCut(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	require.NoError(t, p.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 1, Reason: "why: " + strings.Repeat("\u00e9", 4<<20)}}))
	reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Status: &agentproto.Status{}})
	require.NoError(t, err)
	require.Len(t, reply.Status.Parts, 1)
	text := reply.Status.Parts[0].Error
	require.Contains(t, text, "why: \u00e9")
	require.True(t, utf8.ValidString(text))
	require.Less(t, len(text), 1000)
	_, err = agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Wait: &agentproto.Wait{Run: runPath, Attempt: 1, Step: 1, Level: "nvme"}})
	require.ErrorIs(t, err, moraine.Aborted)
	require.Less(t, len(err.Error()), 1000)
}
