package mover

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
)

// While a flush waits for bandwidth, other flushes wait for their turn. Repairs, moves, work
// that moves no bytes, and the commits of checkpoints do not.
func TestLanesDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := make(chan struct{})
		asked := map[string]int{}
		m, err := New(Config{}, Deps{
			Service:   struct{ Service }{},
			Stripes:   struct{ Stripes }{},
			CheckStep: func(context.Context, client.StepKey) (ckpt.IndexFile, error) { return ckpt.IndexFile{}, nil },
			Pace: func(ctx context.Context, n int64) error {
				if n == 1<<20 {
					<-waits
				}
				asked["others"]++
				return ctx.Err()
			},
			PaceRepair: func(ctx context.Context, _ int64) error { asked["repairs"]++; return ctx.Err() },
		})
		require.NoError(t, err)
		of := func(k wire.JobKind) *work { return &work{Mover: m, job: &wire.Job{Kind: k}} }
		done := make(chan error)
		go func() { done <- of(wire.JobKind_JOB_KIND_FLUSH).pace(t.Context(), 1<<20) }()
		synctest.Wait()

		require.NoError(t, of(wire.JobKind_JOB_KIND_COMMIT_STEP).pace(t.Context(), 0))
		require.Empty(t, asked)
		require.NoError(t, of(wire.JobKind_JOB_KIND_FLUSH).pace(t.Context(), 0))
		require.NoError(t, of(wire.JobKind_JOB_KIND_REBALANCE).pace(t.Context(), 5))
		require.NoError(t, of(wire.JobKind_JOB_KIND_REPAIR).pace(t.Context(), 5))
		require.Equal(t, map[string]int{"others": 2, "repairs": 1}, asked)

		late, cancel := context.WithCancel(t.Context())
		go func() { done <- of(wire.JobKind_JOB_KIND_STAGE).pace(late, 5) }()
		synctest.Wait()
		require.Equal(t, 2, asked["others"], "it waits for the flush")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		close(waits)
		require.NoError(t, <-done)
	})
}
