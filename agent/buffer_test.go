package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
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

// TestLentBytesReachTheAgent: what a trainer lends is in the step as it lent it, though the trainer
// has changed the bytes after the seal and then died. Bytes that do not have their sums are refused, or make the part fail.
func TestLentBytesReachTheAgent(t *testing.T) {
	n := newNode(t, 64<<20)
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	begin := func(step uint64) (*ckpt.Part, []byte) {
		part, err := tr.run.Begin(t.Context(), step, ckpt.BeginOptions{Bytes: 6 * partBytes, Lent: true})
		require.NoError(t, err)
		buf, err := part.Buffer(2 * partBytes)
		require.NoError(t, err)
		return part, buf
	}
	tensor := func(name string, p []byte) ckpt.Tensor {
		return ckpt.Tensor{Name: name, DType: safetensors.U8, Shape: []int64{int64(len(p))}, Data: p}
	}
	part, buf := begin(1)
	copy(buf, data(1, 5))
	copy(buf[partBytes:], data(1, 6))
	lent := data(1, 0)
	require.NoError(t, part.LendTensor(tensor("in place, with sums", buf[:partBytes]), crc.Blocks(nil, buf[:partBytes])))
	require.NoError(t, part.LendTensor(tensor("in place", buf[partBytes:]), nil))
	require.NoError(t, part.LendTensor(tensor("w0", lent), nil))
	require.NoError(t, part.LendTensor(tensor("with sums", lent), crc.Blocks(nil, lent)))
	require.NoError(t, part.LendTensor(tensor("empty", nil), nil))
	blob := []byte("state of rank 0")
	require.NoError(t, part.LendBlob("rng", blob, nil))
	require.NoError(t, part.LendBlob("more", lent[:5000], crc.Blocks(nil, lent[:5000])))
	require.NoError(t, part.Seal(t.Context()))
	clear(lent)
	clear(blob)
	tr.die()
	n.requireStep(1, 1)

	tr = n.trainer("two", 0, 1)
	k, err := tr.run.Resolve(t.Context(), ckpt.ResolveOptions{})
	require.NoError(t, err)
	defer k.Close()
	for name, want := range map[string][]byte{"in place, with sums": data(1, 5), "in place": data(1, 6), "with sums": data(1, 0), "empty": {}} {
		got, err := k.ReadTensor(t.Context(), name)
		require.NoError(t, err)
		require.True(t, slices.Equal(want, got), name)
	}
	more, err := k.ReadBlob(t.Context(), 0, "more")
	require.NoError(t, err)
	require.Equal(t, data(1, 0)[:5000], more)
	_, err = k.Verify(t.Context())
	require.NoError(t, err)

	part, buf = begin(2)
	wrong := crc.Blocks(nil, buf)
	wrong[3]++
	require.ErrorIs(t, part.LendTensor(tensor("w0", slices.Clone(buf)), wrong), moraine.Corrupt)
	part.Abort(nil)
	<-part.Done()
	part, buf = begin(3)
	copy(wrong, crc.Blocks(nil, buf))
	wrong[3]++
	require.ErrorIs(t, part.LendTensor(tensor("w0", buf), wrong[1:]), moraine.InvalidArgument)
	require.NoError(t, part.LendTensor(tensor("w0", buf), wrong))
	require.NoError(t, part.Seal(t.Context()))
	_, err = part.Wait(t.Context(), moraine.NVMe)
	require.ErrorIs(t, err, moraine.Corrupt)
}
