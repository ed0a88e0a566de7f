package ckpt_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/busy"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// TestAFailedSaveIsSeenAtTheNext: training goes on after a save that failed, also if another rank made
// it fail, and the run says which it was.
func TestAFailedSaveIsSeenAtTheNext(t *testing.T) {
	f, ctx := newFake(), t.Context()
	r, other := openRun(t, f, 0, 2), openRun(t, f, 1, 2)
	step, err := r.LastFailure()
	require.Zero(t, step)
	require.NoError(t, err)
	mine := begin(t, r, 1)
	require.NoError(t, mine.Seal(ctx))
	<-mine.Done()
	theirs := begin(t, other, 1)
	theirs.Abort(errors.New("a device failed"))
	<-theirs.Done()
	_, err = other.LastFailure()
	require.NoError(t, err, "it has ended the save itself")

	next := begin(t, r, 2)
	require.Eventually(t, func() bool { step, err = r.LastFailure(); return err != nil }, 10*time.Second, time.Millisecond)
	require.Equal(t, uint64(1), step)
	require.ErrorIs(t, err, moraine.Aborted)
	require.ErrorContains(t, err, "a device failed")
	require.NoError(t, next.Seal(ctx))
	<-next.Done()

	var mu sync.Mutex
	f.before = func(op string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == "create" {
			return &moraine.Error{Op: "create", Kind: moraine.QuotaExceeded}
		}
		return nil
	}
	full := begin(t, r, 3)
	require.NoError(t, full.Seal(ctx))
	<-full.Done()
	step, err = r.LastFailure()
	require.Equal(t, uint64(3), step)
	require.ErrorIs(t, err, moraine.QuotaExceeded)
}

// begin begins a step.
func begin(t *testing.T, r *ckpt.Run, step uint64) *ckpt.Part {
	t.Helper()
	s, err := r.Begin(t.Context(), step, ckpt.BeginOptions{})
	require.NoError(t, err)
	return s
}

// TestBusyPolicies: a save that must not wait for memory fails with Busy at once, and superseding needs
// an agent.
func TestBusyPolicies(t *testing.T) {
	f, ctx := newFake(), t.Context()
	hold := make(chan struct{})
	f.before = func(op string) error {
		if op == "SealPart" {
			<-hold
		}
		return nil
	}
	r, err := ckpt.OpenRunOn(ctx, f, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l"}, StagingBytes: 64 << 20})
	require.NoError(t, err)
	defer r.Close(ctx)
	_, err = r.Begin(ctx, 1, ckpt.BeginOptions{Busy: busy.Supersede})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "moraine agent")
	s, err := r.Begin(ctx, 1, ckpt.BeginOptions{Busy: busy.Skip, Bytes: 40 << 20})
	require.NoError(t, err)
	reached := s.Reached(moraine.NVMe)
	require.NoError(t, s.AddTensor(ctx, ckpt.Tensor{Name: "w", DType: safetensors.U8, Shape: []int64{40 << 20}, Data: make([]byte, 40<<20)}))
	require.NoError(t, s.Seal(ctx))
	_, err = r.Begin(ctx, 2, ckpt.BeginOptions{Busy: busy.Skip, Bytes: 40 << 20})
	require.ErrorIs(t, err, moraine.Busy)
	require.Eventually(t, func() bool {
		written, total, err := s.Progress(ctx)
		return err == nil && written == total && total > 40<<20
	}, 10*time.Second, time.Millisecond)
	close(hold)
	<-s.Done()
	require.NoError(t, f.check(ctx, stepKey(r, 1)))
	<-reached
	s, err = r.Begin(ctx, 2, ckpt.BeginOptions{Busy: busy.Skip, Bytes: 40 << 20})
	require.NoError(t, err)
	s.Abort(nil)
}
