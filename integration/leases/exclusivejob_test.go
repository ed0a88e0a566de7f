package leases_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// jobOn returns the newest job of that subject, nil if there is none yet.
func jobOn(t *testing.T, ctx context.Context, cl *incluster.Client, subject string) (found *wire.Job) {
	t.Helper()
	for j, err := range cl.Jobs().List(ctx, true) {
		require.NoError(t, err)
		if j.Subject == subject {
			found = j
		}
	}
	require.NotNil(t, found, subject)
	return found
}

func live(j *wire.Job) bool {
	return j.State == wire.JobState_JOB_STATE_PENDING || j.State == wire.JobState_JOB_STATE_RUNNING
}

// Jobs that meet an exclusive lease whose holder keeps it wait for its end
// separately: others, of the same kind too, begin later and end before them. When
// the lease has ended they continue.
func TestJobsPassThoseThatWaitForAHolder(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		nap := &incluster.Nap{}
		m := newMaker(t, ctx, c, func(ctx context.Context, to transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
			if req.GetBatch() != nil {
				nap.Sleep() // it does everything except return the lease
			}
			return to.Do(ctx, req)
		})
		defer m.Close()
		defer nap.End()
		r := open(t, ctx, c, "r", client.Config{CacheEntries: -1})
		defer r.Close()
		tops := []string{"t0", "t1", "t2", "t3", "t4", "t5"} // more than run in turn
		var dirs []moraine.InodeID
		for _, top := range tops {
			_, err := m.MkdirAll(ctx, top+"/d", 0)
			require.NoError(t, err)
			a, err := m.Stat(ctx, top+"/d")
			require.NoError(t, err)
			dirs = append(dirs, moraine.InodeID(a.Inode))
		}
		for _, m.dir = range dirs {
			m.hold(t, ctx, "a")
		}
		_, err := r.MkdirAll(ctx, "other/d", 0)
		require.NoError(t, err)
		nap.Begin()
		for _, top := range tops {
			require.NoError(t, r.RemoveAll(ctx, top))
		}
		time.Sleep(time.Second / 2) // they have met the lease
		require.NoError(t, r.RemoveAll(ctx, "other"))
		for live(jobOn(t, ctx, r, "other")) {
			time.Sleep(10 * time.Millisecond)
		}
		for _, top := range tops {
			require.True(t, live(jobOn(t, ctx, r, top)), "the removal of %s did not wait for the holder", top)
		}
		for _, top := range tops {
			for live(jobOn(t, ctx, r, top)) {
				time.Sleep(100 * time.Millisecond)
			}
			require.Equal(t, wire.JobState_JOB_STATE_DONE, jobOn(t, ctx, r, top).State)
		}
	})
}
