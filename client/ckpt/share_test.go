package ckpt_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// TestASharedSliceIsStoredOnce: a part may leave a slice to the part of another rank. The step is then
// complete with the one, and without it the step is not committed.
func TestASharedSliceIsStoredOnce(t *testing.T) {
	f, ctx := newFake(), t.Context()
	tensor := ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{3}, Data: []byte("abc")}
	save := func(step uint64, rank uint32, add func(*ckpt.Part) error) *ckpt.Run {
		r := openRun(t, f, rank, 2)
		s := begin(t, r, step)
		require.NoError(t, add(s))
		require.NoError(t, s.Seal(ctx))
		<-s.Done()
		return r
	}
	r := save(1, 0, func(s *ckpt.Part) error { return s.AddTensor(ctx, tensor) })
	save(1, 1, func(s *ckpt.Part) error { return s.ShareTensor(tensor, nil, 0) })
	require.NoError(t, f.check(ctx, stepKey(r, 1)))
	k := resolve(t, f)
	w, err := k.Tensor(ctx, "w")
	require.NoError(t, err)
	require.Len(t, w.Slices, 1)
	got, err := k.ReadTensor(ctx, "w")
	require.NoError(t, err)
	require.Equal(t, "abc", string(got))
	_, err = k.Verify(ctx)
	require.NoError(t, err)

	save(2, 0, func(s *ckpt.Part) error { return s.ShareTensor(tensor, nil, 1) })
	save(2, 1, func(s *ckpt.Part) error { return s.ShareTensor(tensor, nil, 0) })
	require.ErrorContains(t, f.check(ctx, stepKey(r, 2)), "no rank has")
}
