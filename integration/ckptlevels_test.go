package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// staysInMemory saves steps under a policy of every 10th step to nvme, with the commands.
func staysInMemory(t *testing.T, env []string, file string) {
	t.Helper()
	const run = "moraine:///levels/r"
	works(t, env, "mkdir", "moraine:///levels")
	require.Contains(t, works(t, env, "ckpt", "policy", "moraine:///levels", "--level", "nvme", "--every", "10"), "give level memory a keep rule")
	require.NotContains(t, works(t, env, "ckpt", "policy", "moraine:///levels", "--level", "memory", "--keep-last", "2"), "give level memory")
	works(t, env, "ckpt", "save", run, "--step", "10", file)
	works(t, env, "ckpt", "save", run, "--step", "11", "--level", "memory", file)
	endsAt := func(n int) any { return objects(t, works(t, env, "ckpt", "ls", run, "--json"))[n]["ends_at"] }
	require.Equal(t, []any{"nvme", "memory"}, []any{endsAt(0), endsAt(1)})
	require.Contains(t, works(t, env, "ckpt", "ls", run), "memory (stays)")
	require.Contains(t, works(t, env, "ckpt", "show", run, "--step", "11"), "the policy leaves it in memory")
	restored := func(args ...string) any {
		args = append([]string{"ckpt", "restore", run, t.TempDir(), "--json"}, args...)
		return objects(t, works(t, env, args...))[0]["step"]
	}
	require.EqualValues(t, 10, restored(), "the newest at nvme")
	require.EqualValues(t, 11, restored("--level", "memory"))
	require.EqualValues(t, 11, restored("--step", "11"))
	requireRefused(t, invoke(t, env, "ckpt", "restore", run, t.TempDir(), "--step", "11", "--level", "nvme"), 1, "step")
	requireRefused(t, invoke(t, env, "ckpt", "restore", run, t.TempDir(), "--level", "disk"), 2, "--level")
	levels := objectsIn(objects(t, works(t, env, "ckpt", "watch", run, "--once", "--json"))[0]["levels"])
	require.EqualValues(t, []any{0.0, 1.0}, []any{levels[0]["lost_steps"], levels[1]["lost_steps"]}, "the exposure of memory and nvme")
	works(t, env, "ckpt", "wait", run, "--step", "11", "--timeout", "1m")
	require.Equal(t, "nvme", endsAt(1))
	require.NotContains(t, works(t, env, "ckpt", "show", run, "--step", "11"), "leaves it in memory")
	require.EqualValues(t, 11, restored())
}
