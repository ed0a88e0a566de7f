package integration_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// stepsOf returns the numbers of a run's committed steps.
func stepsOf(t *testing.T, env []string, run string) (steps []float64) {
	t.Helper()
	for _, s := range objects(t, works(t, env, "ckpt", "ls", run, "--json")) {
		steps = append(steps, s["step"].(float64))
	}
	return steps
}

// TestRetentionCommands: the behaviour of `ckpt mark`, `pin`, `unpin`, `policy`, `prune`, `watch` and `drill`, and of
// `ckpt restore --tag` and `--healthy`.
func TestRetentionCommands(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	const run = "moraine:///runs/r"
	var tensors [][]byte
	for step := range 4 {
		file, data := tensorOf(t, rng)
		tensors = append(tensors, data)
		works(t, env, "ckpt", "save", run, "--step", string(rune('1'+step)), file)
	}

	requireRefused(t, invoke(t, env, "ckpt", "mark", run, "--step", "2"), 2, "--healthy")
	requireRefused(t, invoke(t, env, "ckpt", "restore", run, t.TempDir(), "--healthy"), 1, "marked healthy")
	require.Contains(t, works(t, env, "ckpt", "mark", run, "--step", "2", "--healthy", "--tag", "best", "--note", "eval 1.9"), "healthy; tags best; note: eval 1.9")
	for _, choice := range []string{"--healthy", "--tag=best"} {
		dir := t.TempDir()
		require.EqualValues(t, 2, objects(t, works(t, env, "ckpt", "restore", run, dir, choice, "--json"))[0]["step"])
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.NotEmpty(t, entries)
	}
	require.EqualValues(t, 4, drilled(t, env, run)["step"])
	works(t, env, "ckpt", "mark", run, "--step", "4", "--quarantined", "--note", "diverged")
	require.EqualValues(t, 3, drilled(t, env, run)["step"], "a quarantined step is not latest")
	require.Contains(t, works(t, env, "ckpt", "ls", run), "quarantined; note: diverged")
	shown := works(t, env, "ckpt", "show", run, "--step", "4")
	require.Contains(t, shown, "quarantined")
	require.Contains(t, shown, "at nvme since")
	works(t, env, "ckpt", "mark", run, "--step", "4", "--clear")
	require.EqualValues(t, 4, drilled(t, env, run)["step"])

	works(t, env, "ckpt", "pin", run, "--step", "1")
	requireRefused(t, invoke(t, env, "ckpt", "rm", run, "--step", "1"), 1, "pinned", "unpin")
	plan := objects(t, works(t, env, "ckpt", "prune", run, "--keep-last", "1", "--keep-tag", "best", "--dry-run", "--all", "--json"))
	require.Len(t, plan, 4)
	for n, want := range []struct{ action, why string }{{"stay", "latest-nvme names it"}, {"remove", "no level keeps it"}, {"stay", "tag best"}, {"stay", "it is pinned"}} {
		require.Equal(t, want.action, plan[n]["action"], plan[n])
		require.Contains(t, plan[n]["why"], want.why)
		require.Equal(t, false, plan[n]["done"])
	}
	require.Equal(t, []float64{1, 2, 3, 4}, stepsOf(t, env, run), "--dry-run removes nothing")
	pruned := objects(t, works(t, env, "ckpt", "prune", run, "--keep-last", "1", "--keep-tag", "best", "--json"))
	require.Len(t, pruned, 1)
	require.EqualValues(t, 3, pruned[0]["step"])
	require.Equal(t, true, pruned[0]["done"])
	require.Equal(t, []float64{1, 2, 4}, stepsOf(t, env, run))

	requireRefused(t, invoke(t, env, "ckpt", "policy", run, "--keep-last", "1"), 2, "--level")
	requireRefused(t, invoke(t, env, "ckpt", "policy", run, "--level", "local"), 2, "--level")
	require.Contains(t, works(t, env, "ckpt", "policy", run), "no policy")
	works(t, env, "policy", "set", "--scheme", "x3", "moraine:///runs")
	works(t, env, "ckpt", "policy", "moraine:///runs", "--level", "nvme", "--keep-last", "1")
	rule := objects(t, works(t, env, "ckpt", "policy", run, "--json"))[0]
	require.Equal(t, map[string]any{"level": "nvme", "keep_last": 1.0, "own": false}, rule)
	works(t, env, "policy", "set", "--flush", "never", "moraine:///runs")
	require.Contains(t, works(t, env, "ckpt", "policy", "moraine:///runs"), "last 1", "the other commands leave this part")
	require.Contains(t, works(t, env, "policy", "get", "moraine:///runs"), "x3", "and this command the others")
	works(t, env, "ckpt", "unpin", run, "--step", "1")
	require.Eventually(t, func() bool { return len(stepsOf(t, env, run)) == 1 }, 2*time.Minute, 300*time.Millisecond, "the leader applies the policy")

	state := objects(t, works(t, env, "ckpt", "watch", run, "--once", "--json"))[0]
	require.EqualValues(t, 4, objectsIn(state["steps"])[0]["step"])
	require.EqualValues(t, 0, objectsIn(state["levels"])[1]["lost_steps"])
	require.Contains(t, works(t, env, "ckpt", "watch", run, "--once"), "NEWEST STEP")

	requireRefused(t, invoke(t, env, "ckpt", "drill", run, "--metrics", "127.0.0.1:0"), 2, "--every")
	works(t, env, "ckpt", "verify", run)
	rot(t, c, tensors[3])
	began := time.Now()
	o := invoke(t, env, "ckpt", "drill", run)
	t.Logf("drill of a damaged step: %v", time.Since(began))
	require.Equal(t, 1, o.code, o.stdout)
	require.Contains(t, o.stdout, "FAILED")
	require.Contains(t, o.stderr, "step 4")
	require.Contains(t, o.stderr, "--fallback")
}

// drilled returns what `ckpt drill` says of level nvme.
func drilled(t *testing.T, env []string, run string) map[string]any {
	t.Helper()
	rows := objects(t, works(t, env, "ckpt", "drill", run, "--json"))
	require.Len(t, rows, 3)
	require.Equal(t, "nvme", rows[1]["level"])
	require.Positive(t, rows[1]["bytes"])
	require.Positive(t, rows[1]["restore_seconds"])
	return rows[1]
}
