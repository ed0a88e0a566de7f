package ckpt_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/memcluster"
)

// TestAReaderWaitsForAStep: a reader waits for a step that has not begun; for one whose rank does
// not seal; for one of an earlier attempt that the current one continues; and for one that is
// aborted.
func TestAReaderWaitsForAStep(t *testing.T) {
	inCluster(t, memcluster.Options{}, func(t *testing.T, c *memcluster.Cluster) {
		trainers := team(t, c, "l1", 2)
		cl := c.Client("reader")
		defer cl.Close()
		r, err := ckpt.OpenRun(t.Context(), cl, "/runs/deep/a", ckpt.RunOptions{ReadOnly: true})
		require.NoError(t, err)
		defer r.Close(context.Background())
		waitFor := func(step uint64, d time.Duration) (ckpt.StepInfo, error) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			return r.WaitStep(ctx, step, moraine.NVMe)
		}

		info, err := waitFor(1, 5*time.Second)
		require.ErrorIs(t, err, moraine.Timeout)
		require.Empty(t, info.State, "no rank has begun it")

		begun := make(chan struct{})
		c.Run(func(context.Context) error {
			defer close(begun)
			time.Sleep(3 * time.Second)
			saveAll(t, trainers, 1, 11)
			return nil
		})
		info, err = waitFor(1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, ckpt.StepCommitted, info.State)
		require.Equal(t, uint32(1), info.Attempt)
		<-begun

		s0 := trainers[0].begin(2, 12, ckpt.BeginOptions{})
		require.NoError(t, s0.Seal(t.Context()))
		<-s0.Done()
		info, err = waitFor(2, 25*time.Second)
		require.ErrorIs(t, err, moraine.Timeout)
		require.Equal(t, ckpt.StepOpen, info.State)
		require.Equal(t, []uint32{1}, info.Missing)

		// The next launch takes over: step 2 is aborted, and step 1 is one of its branch.
		next, err := openTrainer(t, c, ckpt.Launch{Name: "l2"}, true, 0, 1)
		require.NoError(t, err)
		info, err = waitFor(1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, uint32(1), info.Attempt)
		_, err = waitFor(2, 5*time.Second)
		require.ErrorIs(t, err, moraine.Timeout, "the current attempt has not begun it")

		s := next.begin(2, 12, ckpt.BeginOptions{SealTimeout: 30 * time.Second})
		info, err = waitFor(2, 5*time.Minute)
		require.ErrorIs(t, err, moraine.Aborted)
		require.Equal(t, uint32(2), info.Attempt)
		require.Equal(t, []uint32{0}, info.Missing)
		s.Abort(context.Canceled)
	})
}
