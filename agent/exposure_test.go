package agent_test

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/tiers/object"
)

// TestExposureOfEachRun: metrics and status say what a crash of the node now would lose at each level, up to
// the bucket, while a trainer has the run open.
func TestExposureOfEachRun(t *testing.T) {
	bucket, err := localbucket.New(1, nil)
	require.NoError(t, err)
	n := newNodeOver(t, 6*slotBytes, incluster.Options{Bucket: func(string) (object.Store, error) { return bucket, nil }})
	reg := prometheus.NewRegistry()
	n.metrics = agent.NewMetrics(reg)
	n.config.Look = 20 * time.Millisecond
	n.start(time.Minute)
	tr := n.trainer("one", 0, 1)
	require.Empty(t, n.levels(), "no step is committed: what is lost is not known")
	begun := time.Now()
	first := tr.save(3, 0)
	_, err = first.Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	n.eventually(func() bool { return len(n.levels()) == 2 })
	for _, level := range []string{"memory", "nvme"} {
		l := n.levels()[level]
		require.Equal(t, [3]uint64{1, 3, 0}, [3]uint64{uint64(l.Attempt), l.Step, l.LostSteps}, "%+v", l)
		require.Less(t, l.LostSeconds, time.Since(begun).Seconds())
		require.WithinRange(t, time.Unix(0, l.Committed), begun.Add(-time.Second), time.Now())
	}

	// Steps that a trainer has begun are lost until they are committed, also when they are sealed.
	part, err := tr.fill(7, 0, ckpt.BeginOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 4, n.levels()["nvme"].LostSteps)
	n.eventually(func() bool { return figure(t, reg, "run_exposed_steps", runPath, "memory") == 4 })
	require.EqualValues(t, 4, figure(t, reg, "run_exposed_steps", runPath, "nvme"))
	before := figure(t, reg, "run_exposed_seconds", runPath, "nvme")
	n.eventually(func() bool { return figure(t, reg, "run_exposed_seconds", runPath, "nvme") > before })
	require.Less(t, before, time.Since(begun).Seconds())

	// A step that will never be committed is not work that a crash would lose.
	part.Abort(errors.New("no more"))
	<-part.Done()
	n.eventually(func() bool { return n.levels()["nvme"].LostSteps == 0 })

	// The agent learns from the service what it does not follow itself: the bucket, and marks.
	require.Zero(t, figure(t, reg, "run_last_commit_timestamp_seconds", runPath, "object"))
	_, err = first.Wait(t.Context(), moraine.Object)
	require.NoError(t, err)
	n.eventually(func() bool { return n.levels()["object"].Step == 3 })
	require.InDelta(t, float64(time.Now().Unix()), figure(t, reg, "run_last_commit_timestamp_seconds", runPath, "object"), 120)
	_, err = tr.save(9, 0).Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	n.eventually(func() bool {
		l := n.levels()
		return l["nvme"].Step == 9 && l["nvme"].LostSteps == 0 && l["object"].Step == 3 && l["object"].LostSteps == 6
	})
	_, err = tr.run.Mark(t.Context(), ckpt.StepRef{Attempt: 1, Step: 9}, ckpt.MarkQuarantined, "")
	require.NoError(t, err)
	n.eventually(func() bool { return n.levels()["nvme"].Step == 3 && n.levels()["nvme"].LostSteps == 6 })

	// Nobody knows whether a run goes on that no trainer has open.
	tr.die()
	n.eventually(func() bool { return len(n.levels()) == 0 })
	require.NotContains(t, seriesOf(t, reg), "moraine_agent_run_exposed_steps")
	require.NotContains(t, seriesOf(t, reg), "moraine_agent_run_exposed_seconds")
	require.NoError(t, n.stop())
}

// levels returns what status has of the levels of the run.
func (n *node) levels() map[string]agentproto.LevelStatus {
	n.t.Helper()
	reply, err := agentproto.Ask(n.t.Context(), n.socket(), &agentproto.Request{Status: &agentproto.Status{}})
	require.NoError(n.t, err)
	out := map[string]agentproto.LevelStatus{}
	for _, r := range reply.Status.Runs {
		for _, l := range r.Levels {
			out[l.Level] = l
		}
	}
	return out
}

// seriesOf returns the names of the metrics that have a value.
func seriesOf(t *testing.T, reg *prometheus.Registry) (names []string) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		names = append(names, f.GetName())
	}
	return names
}
