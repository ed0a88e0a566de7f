package ckpt_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
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

// TestARankClaimsGroups: the first rank that claims a group stores it, whoever asks again. An answer that
// cannot be one is an error, as is no answer: then the rank stores all groups.
func TestARankClaimsGroups(t *testing.T) {
	f, ctx := newFake(), t.Context()
	x, y, z := ckpt.GroupID{1}, ckpt.GroupID{2}, ckpt.GroupID{3}
	zero, one := begin(t, openRun(t, f, 0, 2), 1), begin(t, openRun(t, f, 1, 2), 1)
	requireRanks := func(s *ckpt.Part, want []uint32, groups ...ckpt.GroupID) {
		t.Helper()
		got, err := s.Claim(ctx, groups)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	requireRanks(zero, []uint32{0, 0}, x, y)
	requireRanks(one, []uint32{1, 0}, z, y)
	requireRanks(zero, []uint32{1, 0, 0}, z, y, x)

	f.withheld = 1
	_, err := zero.Claim(ctx, []ckpt.GroupID{x, y})
	require.ErrorContains(t, err, "1 ranks for 2 groups")
	f.withheld, f.added = 0, 1
	_, err = one.Claim(ctx, []ckpt.GroupID{z})
	require.ErrorContains(t, err, "rank 2 of 2")
	f.before = func(string) error { return fail(moraine.Unavailable, "no leader") }
	_, err = one.Claim(ctx, []ckpt.GroupID{x})
	require.ErrorIs(t, err, moraine.Unavailable)

	waits, cancel := context.WithCancel(ctx)
	cancel()
	f = newFake()
	f.before = func(op string) error {
		if op == "BeginStep" { // the rank cannot begin
			<-ctx.Done()
		}
		return ctx.Err()
	}
	_, err = begin(t, openRun(t, f, 0, 2), 1).Claim(waits, []ckpt.GroupID{x})
	require.ErrorIs(t, err, moraine.Canceled)
}
