package integration_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/internal/devcluster"
)

// TestAdviceOfWhatWasMeasured: `ckpt advise RUN` alone takes the time between failures from the launches of
// the run, and stall and restore from the agent. It names the flags for what was not measured. --drill
// measures a restore.
func TestAdviceOfWhatWasMeasured(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	a := newAgentProc(t, c)
	a.start()
	const run = "moraine:///runs/r"
	env := append(settingsFor(c), "MORAINE_AGENT="+a.socket())
	advise := func(more ...string) outcome {
		return invoke(t, env, append([]string{"ckpt", "advise", run, "--json"}, more...)...)
	}
	var got struct {
		MTBF      float64 `json:"mtbf_seconds"`
		Stall     float64 `json:"stall_seconds"`
		Restore   float64 `json:"restore_seconds"`
		StepTime  float64 `json:"step_seconds"`
		Steps     int     `json:"observed_steps"`
		Measured  []string
		Intervals []struct {
			Method string
			Steps  uint64 `json:"interval_steps"`
		}
	}
	measures := func(more ...string) {
		t.Helper()
		o := advise(more...)
		require.Zero(t, o.code, o.stderr)
		got.Measured, got.Intervals = nil, nil
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &got))
	}
	requireRefused(t, advise("--mtbf", "4h", "--drill"), 2, "--stall (the agent has seen no save of the run")
	requireRefused(t, advise("--mtbf", "4h", "--agent", "/no/where"), 2, "--stall (no agent answers at /no/where", "--restore, or --drill")

	file := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	save := func(launch, step string) {
		t.Helper()
		out, code := a.runAs(launch, "ckpt", "save", run, "--step", step, "--agent", a.socket(), "--level", "nvme", file)
		require.Equal(t, 0, code, out)
	}
	save("one", "1")
	measures("--mtbf", "4h", "--drill")
	require.Equal(t, 14400.0, got.MTBF)
	require.Positive(t, got.Stall)
	require.Positive(t, got.Restore)
	require.Len(t, got.Measured, 2)
	require.Contains(t, got.Measured[0], "1 save ")
	require.Contains(t, got.Measured[1], "step 1")
	o := advise()
	requireRefused(t, o, 2, "--restore, or --drill", "has seen no restore", "--mtbf", "one launch only")
	require.NotContains(t, o.stderr, "--stall")

	save("two", "11")
	save("two", "31")
	a.restore("/runs/r")
	require.Eventually(t, func() bool { return a.status().Runs[0].Restores == 1 }, time.Minute, 50*time.Millisecond)
	measures()
	require.Len(t, got.Measured, 3)
	require.Contains(t, got.Measured[0], "3 saves ")
	require.Contains(t, got.Measured[1], "1 restore ")
	require.Contains(t, got.Measured[2], "As failures count the starts of attempts 2. Nothing records why")
	requireRefused(t, advise("--planned", "2"), 2, "--mtbf", "all its launches were planned")
	requireRefused(t, advise("--planned", "1"), 2, "--planned 1: no launch of the run")
	requireRefused(t, advise("--planned", "2", "--mtbf", "4h"), 2, "give neither --mtbf nor --nodes")
	require.Positive(t, got.MTBF)
	require.Positive(t, got.Restore)
	require.Equal(t, 2, got.Steps)
	require.Positive(t, got.StepTime)
	require.Equal(t, "Daly 2006", got.Intervals[0].Method)
	require.Positive(t, got.Intervals[0].Steps)
	text := works(t, env, "ckpt", "advise", run)
	require.Contains(t, text, "STEPS")
}

// restore reads the newest step of a run through the agent, as a trainer in another language does.
func (a *agentProc) restore(run string) {
	a.t.Helper()
	conn, err := agentproto.Dial(a.t.Context(), a.socket())
	require.NoError(a.t, err)
	defer conn.Close()
	ask := func(req agentproto.Request) *agentproto.Reply {
		a.t.Helper()
		reply, files, err := conn.Exchange(a.t.Context(), &req)
		require.NoError(a.t, err)
		for _, f := range files {
			_ = f.Close() // nobody maps it
		}
		return reply
	}
	ask(agentproto.Request{Open: &agentproto.Open{Run: run, World: 1, ReadOnly: true}})
	step := ask(agentproto.Request{Resolve: &agentproto.Resolve{}}).Resolve
	for _, b := range step.Blobs {
		ask(agentproto.Request{Fetch: &agentproto.Fetch{Bytes: b.Bytes, Blobs: []agentproto.FetchBlob{{Rank: b.Rank, Name: b.Name, Bytes: b.Bytes}}, Reuse: true}})
	}
}

// status returns what `moraine agent status --json` prints.
func (a *agentProc) status() (s agentproto.StatusReply) {
	a.t.Helper()
	out, code := a.run("agent", "status", "--socket", a.socket(), "--json")
	require.Zero(a.t, code, out)
	require.NoError(a.t, json.Unmarshal([]byte(out), &s), out)
	return s
}
