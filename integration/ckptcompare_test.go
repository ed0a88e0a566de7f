package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// TestCompareAndWaitCommands: the behaviour of `ckpt diff`, `ckpt wait` and `ckpt advise` on a run,
// with their exit codes.
func TestCompareAndWaitCommands(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	const run = "moraine:///runs/r"
	one, _ := tensorOf(t, rng)
	two, _ := tensorOf(t, rng)
	save := func(step, file string, more ...string) []string {
		return append([]string{"ckpt", "save", run, "--step", step, "--launch", "job", file}, more...)
	}
	works(t, env, save("1", one)...)
	works(t, env, save("2", one)...)
	works(t, env, save("3", two)...)

	require.Contains(t, works(t, env, "ckpt", "diff", run, "1", "2"), "are equal")
	o := invoke(t, env, "ckpt", "diff", run, "1", run, "3", "--json")
	require.Equal(t, 1, o.code)
	require.Empty(t, o.stderr)
	result := objects(t, o.stdout)[0]
	require.Equal(t, false, result["equal"])
	row := objectsIn(result["rows"])[0]
	require.Equal(t, "w", row["tensor"])
	require.Equal(t, "content", row["kind"])
	requireRefused(t, invoke(t, env, "ckpt", "diff", run, "1", "9"), 1, "no committed step 9", "ckpt ls")

	require.Contains(t, works(t, env, "ckpt", "advise", run, "--mtbf", "4h", "--stall", "1ms", "--restore", "90s"), "the run now")

	require.Contains(t, works(t, env, "ckpt", "wait", run, "--step", "3"), "is committed at level nvme")
	requireRefused(t, invoke(t, env, "ckpt", "wait", run, "--step", "4", "--timeout", "1s"), 1, "no rank of the current attempt has begun it")
	saved := make(chan int)
	go func() { saved <- invoke(t, env, save("4", one, "--world", "2")...).code }()
	require.Eventually(t, func() bool {
		steps := objects(t, works(t, env, "ckpt", "ls", run, "--all", "--json"))
		return steps[len(steps)-1]["ranks"] == "1 of 2"
	}, time.Minute, 200*time.Millisecond)
	requireRefused(t, invoke(t, env, "ckpt", "wait", run, "--step", "4", "--timeout", "1s"), 1, "1 of 2 ranks have sealed", "rank 1 has not sealed its part")
	go func() { saved <- invoke(t, env, save("4", one, "--world", "2", "--rank", "1")...).code }()
	works(t, env, "ckpt", "wait", run, "--step", "4", "--timeout", "1m")
	require.Zero(t, <-saved+<-saved)
}

// TestAStepGoesToTheBucket saves a step, waits for each of its levels, and reads it from the bucket
// once its stripes are evicted. Without a bucket the wait for level object fails at once.
func TestAStepGoesToTheBucket(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	const run = "moraine:///runs/r"
	one, _ := tensorOf(t, rng)
	none := settingsFor(startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1}))
	requireRefused(t, invoke(t, none, "ckpt", "save", run, "--step", "1", "--level", "object", one), 1, "no chunkserver has a bucket", "--bucket")

	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := settingsFor(c)
	require.Contains(t, works(t, env, "ckpt", "save", run, "--step", "1", "--level", "memory", one), "is committed at level ")
	works(t, env, "ckpt", "wait", run, "--step", "1", "--level", "nvme")
	require.Contains(t, works(t, env, "ckpt", "wait", run, "--step", "1", "--level", "object"), "is committed at level object")
	names := works(t, env, "ls", run)
	for _, link := range []string{"latest", "latest-memory", "latest-nvme", "latest-object"} {
		require.Contains(t, strings.Fields(names), link)
	}
	works(t, env, "evict", "--wait", run+"/step-1")
	works(t, env, "ckpt", "verify", run)
}
