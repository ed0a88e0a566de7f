package integration_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
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
		if step == 0 {
			staysInMemory(t, env, file)
		}
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

	marksInGo(t, c)

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

// marksInGo changes what is said of the only step of the run, 4, and finds it by that.
func marksInGo(t *testing.T, c *devcluster.Cluster) {
	t.Helper()
	run, err := ckpt.OpenRun(t.Context(), connect(t, c, client.Config{}), "/runs/r", ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	step, err := run.Latest(t.Context(), moraine.NVMe)
	require.NoError(t, err)
	ref := ckpt.StepRef{Attempt: step.Attempt, Step: step.Step}
	step, err = run.Pin(t.Context(), ref, true)
	require.NoError(t, err)
	require.True(t, step.Pinned)
	_, err = run.Mark(t.Context(), ref, ckpt.MarkQuarantined, "bad")
	require.NoError(t, err)
	_, err = run.Latest(t.Context(), moraine.Memory)
	require.ErrorIs(t, err, moraine.NotFound)
	step, err = run.Mark(t.Context(), ref, ckpt.MarkHealthy, "good")
	require.NoError(t, err)
	require.True(t, step.Good())
	require.Equal(t, "good", step.Note)
	require.False(t, step.Reached[moraine.NVMe].IsZero())
	_, err = run.Mark(t.Context(), ref, "perfect", "")
	require.ErrorIs(t, err, moraine.InvalidArgument)
	k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Healthy: true})
	require.NoError(t, err)
	require.Equal(t, uint64(4), k.Info.Step)
	require.NoError(t, k.Close())
	_, err = run.Resolve(t.Context(), ckpt.ResolveOptions{Tag: "best"})
	require.ErrorIs(t, err, moraine.NotFound)
	verdicts, err := run.Retention(t.Context(), ckpt.Policy{{Level: moraine.NVMe, KeepFor: time.Nanosecond}})
	require.NoError(t, err)
	require.Len(t, verdicts, 1)
	require.Equal(t, "stay", verdicts[0].Action)
}

// TestStepsGoToTheBucketAndLeaveTheDevices: the policy brings every second step to a real bucket, and keeps one
// step on devices. What left the devices is restored from the bucket.
func TestStepsGoToTheBucketAndLeaveTheDevices(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	const run = "moraine:///runs/r"
	var tensors [][]byte
	for step := range 5 {
		file, data := tensorOf(t, rng)
		tensors = append(tensors, data)
		works(t, env, "ckpt", "save", run, "--step", string(rune('1'+step)), file)
		if step == 0 { // the run is there now
			works(t, env, "ckpt", "policy", run, "--level", "object", "--every", "2")
			works(t, env, "ckpt", "policy", run, "--level", "nvme", "--keep-last", "1")
		}
	}
	var steps []map[string]any
	require.Eventually(t, func() bool {
		steps = objects(t, works(t, env, "ckpt", "ls", run, "--json"))
		return len(steps) == 3 && steps[0]["level"] == "object" && steps[1]["level"] == "object"
	}, 2*time.Minute, 300*time.Millisecond, "steps 1 and 3 go, 2 and 4 are in the bucket")
	require.Equal(t, []float64{2, 4, 5}, stepsOf(t, env, run))
	file := "moraine:///runs/r/attempt-2/step-2/rank-00000-of-00001.safetensors"
	require.Eventually(t, func() bool { return objects(t, works(t, env, "stat", file, "--json"))[0]["evicted"] == true },
		2*time.Minute, 300*time.Millisecond, "step 2 leaves the devices")
	require.Equal(t, false, objects(t, works(t, env, "stat", "moraine:///runs/r/attempt-4/step-4/rank-00000-of-00001.safetensors", "--json"))[0]["evicted"],
		"step 4 is the newest in the bucket")

	dir := t.TempDir()
	works(t, env, "ckpt", "restore", run, dir, "--step", "2")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	got, err := os.ReadFile(filepath.Join(dir, entries[0].Name()))
	require.NoError(t, err)
	require.True(t, bytes.Contains(got, tensors[1]))

	rows := objects(t, works(t, env, "ckpt", "drill", run, "--json"))
	for n, want := range []float64{5, 5, 4} {
		require.EqualValues(t, want, rows[n]["step"])
		require.Positive(t, rows[n]["bytes"])
	}
	require.EqualValues(t, 1, rows[2]["lost_steps"])
}

// TestADrillReadsTheBucket: the newest step is in a real bucket and on devices, whose bytes are damaged. A drill
// says that the step cannot be restored from devices, and can from the bucket.
func TestADrillReadsTheBucket(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	const run = "moraine:///runs/r"
	file, data := tensorOf(t, rng)
	works(t, env, "ckpt", "save", run, "--step", "1", file)
	works(t, env, "ckpt", "wait", run, "--step", "1", "--level", "object")
	rows := objects(t, works(t, env, "ckpt", "drill", run, "--json"))
	for n, want := range []string{"nvme", "nvme", "object"} {
		require.Equal(t, want, rows[n]["read_from"])
		require.GreaterOrEqual(t, rows[n]["bytes"], float64(len(data)))
	}
	rot(t, c, data)
	o := invoke(t, env, "ckpt", "drill", run, "--json")
	require.Equal(t, 1, o.code, o.stderr)
	rows = objects(t, o.stdout)
	require.Contains(t, rows[1], "error", "the devices have other bytes")
	require.NotContains(t, rows[2], "error")
	require.Equal(t, "object", rows[2]["read_from"])
}
