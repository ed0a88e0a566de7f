package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// TestABufferOfTheSlotIsNotCopied: what a trainer has put into a buffer of the agent's memory is saved
// from there. The slot has no room for a copy. A change after AddTensor is found.
func TestABufferOfTheSlotIsNotCopied(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	const room = 12 << 20 // more than a slot is longer than its part
	fill := func(step uint64) (*ckpt.Part, []byte) {
		part, err := tr.run.Begin(t.Context(), step, ckpt.BeginOptions{Bytes: room + 2*partBytes})
		require.NoError(t, err)
		buf, err := part.Buffer(room)
		require.NoError(t, err)
		require.Len(t, buf, room)
		_, err = part.Buffer(room)
		require.ErrorIs(t, err, moraine.TooLarge)
		for at := 0; at < room; at += copy(buf[at:], data(step, 7)) {
		}
		copy(buf, data(step, 0))
		add := func(name string, p []byte) {
			require.NoError(t, part.AddTensor(t.Context(), ckpt.Tensor{Name: name, DType: safetensors.U8, Shape: []int64{int64(len(p))}, Data: p}))
		}
		add("w0", buf[:partBytes])
		add("rest", buf[partBytes:])
		add("copied", data(step, 9))
		require.NoError(t, part.AddBlob(t.Context(), "rng", []byte("state of rank 0")))
		return part, buf
	}
	part, buf := fill(1)
	want := append([]byte{}, buf...)
	require.NoError(t, part.Seal(t.Context()))
	n.requireStep(1, 1)
	k, err := tr.run.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	defer k.Close()
	rest, err := k.ReadTensor(t.Context(), "rest")
	require.NoError(t, err)
	require.True(t, string(want[partBytes:]) == string(rest))
	_, err = k.Verify(t.Context())
	require.NoError(t, err)
	_, err = part.Buffer(1)
	require.ErrorIs(t, err, moraine.InvalidArgument, "it is sealed")

	part, buf = fill(2)
	buf[5<<20] ^= 1
	require.NoError(t, part.Seal(t.Context()))
	_, err = part.Wait(t.Context(), moraine.NVMe)
	require.ErrorIs(t, err, moraine.Corrupt)
}
