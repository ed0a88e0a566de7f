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
	require.NoError(t, p.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 1, Reason: "why: " + strings.Repeat("\u00e9", 16<<10)}}))
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

// TestPartsThatHaveEndedKeepNoSums: the agent remembers a thousand parts. Of each it has the numbers alone.
func TestPartsThatHaveEndedKeepNoSums(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	require.NoError(t, p.seal(1, 1<<20))
	require.NoError(t, n.wait(1))
	require.NoError(t, p.begin(2, 1<<20))
	require.NoError(t, p.ask(&agentproto.Request{Seal: &agentproto.Seal{Step: 2, SumsAt: 1 << 20, Tensors: []agentproto.Tensor{
		{Name: "w0", DType: "U8", Shape: []int64{1 << 20}, Bytes: 1 << 20}}}}))
	require.ErrorIs(t, n.wait(2), moraine.Corrupt, "the table of sums is of other bytes")
	require.NoError(t, p.begin(3, 1<<20))
	require.NoError(t, p.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 3}}))
	require.Zero(t, n.a.PartsWithSums())
	for step, state := range map[uint64]string{1: agentproto.Committed, 2: agentproto.Failed, 3: agentproto.Failed} {
		reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Progress: &agentproto.Progress{Run: runPath, Attempt: 1, Step: step}})
		require.NoError(t, err)
		require.Equal(t, state, reply.Progress.State)
		if step == 1 {
			require.Positive(t, reply.Progress.Written)
			require.Equal(t, reply.Progress.Bytes, reply.Progress.Written)
		}
	}
}

// TestABlobIsComparedWithItsPlaceFirst: a fetch costs no memory beside the slot, however large the blob is.
func TestABlobIsComparedWithItsPlaceFirst(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	p := n.peer(runPath, "one", 1)
	require.NoError(t, p.begin(1, 1<<20))
	require.NoError(t, p.ask(&agentproto.Request{Seal: &agentproto.Seal{Step: 1, Blobs: []agentproto.Blob{{Name: "b", Bytes: 1 << 20}}}}))
	require.NoError(t, n.wait(1))
	require.NoError(t, p.ask(&agentproto.Request{Resolve: &agentproto.Resolve{}}))
	fetch := func(bytes int64) error {
		return p.ask(&agentproto.Request{Fetch: &agentproto.Fetch{Bytes: 1 << 20, Blobs: []agentproto.FetchBlob{{Name: "b", Bytes: bytes}}}})
	}
	err := fetch(1)
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "ckpt.ReadBlobInto")
	require.NoError(t, fetch(1<<20))
}
