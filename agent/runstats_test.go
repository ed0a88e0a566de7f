package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/agent"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// TestFiguresOfEachRun: the agent counts saves, bytes, stall and failures of each run, and when its last
// save reached each level, for metrics and for status.
func TestFiguresOfEachRun(t *testing.T) {
	n := newNode(t, 3*slotBytes)
	reg := prometheus.NewRegistry()
	n.metrics = agent.NewMetrics(reg)
	n.start(0)
	begun := time.Now()
	tr := n.trainer("one", 0, 1)
	_, err := tr.save(1, 0).Wait(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	tr.die()
	reply, err := agentproto.Ask(t.Context(), n.socket(), &agentproto.Request{Status: &agentproto.Status{}})
	require.NoError(t, err)
	require.Len(t, reply.Status.Runs, 1)
	r := reply.Status.Runs[0]
	require.Equal(t, runPath, r.Run)
	require.EqualValues(t, 1, r.Saves)
	require.GreaterOrEqual(t, r.Bytes, int64(partBytes))
	require.Positive(t, r.StallSeconds)
	require.Less(t, r.StallSeconds, time.Since(begun).Seconds())
	require.EqualValues(t, 1, figure(t, reg, "run_saves_total", runPath))
	require.InDelta(t, r.StallSeconds, figure(t, reg, "run_stall_seconds_total", runPath), 1e-9)
	require.EqualValues(t, r.Bytes, figure(t, reg, "run_saved_bytes_total", runPath))
	for _, level := range []string{"local", "memory", "nvme"} {
		at := figure(t, reg, "run_last_commit_timestamp_seconds", runPath, level)
		require.InDelta(t, float64(time.Now().Unix()), at, 120, level)
	}
	require.Zero(t, figure(t, reg, "run_failed_parts_total", runPath))

	// The next agent has not followed the step.
	require.NoError(t, n.stop())
	reg = prometheus.NewRegistry()
	n.metrics = agent.NewMetrics(reg)
	n.start(0)
	require.Equal(t, agentproto.Committed, n.states()[1])
	require.Zero(t, figure(t, reg, "run_last_commit_timestamp_seconds", runPath))

	// A run that is open keeps its figures. Of those that were closed, the longest closed ones are forgotten.
	fails := func(run string) *peer {
		p := n.peer(run, "one", 1)
		require.NoError(t, p.begin(1, 1000))
		require.NoError(t, p.ask(&agentproto.Request{Abort: &agentproto.Abort{Step: 1, Reason: "a test"}}))
		return p
	}
	fails("/runs/open")
	for i := range 70 {
		require.NoError(t, fails(fmt.Sprintf("/runs/many/%d", i)).conn.Close())
	}
	require.EqualValues(t, 1, figure(t, reg, "run_failed_parts_total", "/runs/open"))
	require.EqualValues(t, 1, figure(t, reg, "run_failed_parts_total", "/runs/many/69"))
	require.EqualValues(t, 1, figure(t, reg, "run_failed_parts_total", "/runs/many/20"))
	require.Zero(t, figure(t, reg, "run_failed_parts_total", "/runs/many/0"))
	require.Zero(t, figure(t, reg, "run_failed_parts_total", "other"))
	for i := range 64 { // with the first one, 65 are open
		fails(fmt.Sprintf("/runs/kept/%d", i))
	}
	require.EqualValues(t, 1, figure(t, reg, "run_failed_parts_total", "other"))
	labels := map[string]bool{}
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "run" {
					labels[l.GetValue()] = true
				}
			}
		}
	}
	require.LessOrEqual(t, len(labels), 65)
}

// figure is the value of a metric of a run, 0 if there is none. More than the run is the level.
func figure(t *testing.T, reg *prometheus.Registry, name, run string, level ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "moraine_agent_"+name {
			continue
		}
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["run"] == run && (len(level) == 0 || labels["level"] == level[0]) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
