package integration_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tensorOf makes a safetensors file of one tensor of random bytes.
func tensorOf(t *testing.T, rng *rand.Rand) (path string, data []byte) {
	t.Helper()
	data = make([]byte, 1<<17)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	header := `{"w":{"dtype":"U8","shape":[131072],"data_offsets":[0,131072]}}`
	path = filepath.Join(t.TempDir(), "model.safetensors")
	file := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	require.NoError(t, os.WriteFile(path, append(file, data...), 0o644))
	return path, data
}

// rot flips bits near both ends of data, wherever a chunkserver has it on its disks.
func rot(t *testing.T, c *devcluster.Cluster, data []byte) {
	t.Helper()
	nodes, flipped := c.Nodes(devcluster.Chunkserver), 0
	for _, n := range nodes {
		require.NoError(t, n.Stop(10*time.Second))
		segments, err := filepath.Glob(filepath.Join(n.Dir, "device0", "segments", "*"))
		require.NoError(t, err)
		for _, name := range segments {
			have, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, at := range []int{100, len(data) - 100} {
				for from := 0; ; flipped++ {
					i := bytes.Index(have[from:], data[at:at+32])
					if i < 0 {
						break
					}
					have[from+i] ^= 1
					from += i + 32
				}
			}
			require.NoError(t, os.WriteFile(name, have, 0o644))
		}
	}
	require.GreaterOrEqual(t, flipped, 2)
	for _, n := range nodes {
		require.NoError(t, n.Start())
		require.NoError(t, n.Ready(t.Context()))
	}
}

// TestCheckpointCommands: the behaviour of `ckpt restore --fallback`, `ckpt ls`,
// `ckpt show` and `ckpt rm --force` when the latest checkpoint is damaged on its
// disks.
func TestCheckpointCommands(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	const run = "moraine:///runs/r"
	good, want := tensorOf(t, rng)
	bad, rotten := tensorOf(t, rng)
	works(t, env, "ckpt", "save", run, "--step", "1", good)
	works(t, env, "ckpt", "save", run, "--step", "2", bad)
	require.Equal(t, "committed", objects(t, works(t, env, "ckpt", "show", run, "--step", "2", "--json"))[0]["state"])

	requireRefused(t, invoke(t, env, "ckpt", "restore", run, t.TempDir(), "--fallback", "--step", "2"), 2, "--fallback")
	rot(t, c, rotten)

	restored := func(dir string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, entries, 1, "what was passed over leaves nothing")
		got, err := os.ReadFile(filepath.Join(dir, entries[0].Name()))
		require.NoError(t, err)
		require.True(t, bytes.Contains(got, want), "the tensor of step 1")
	}
	dir := t.TempDir()
	umask := unix.Umask(0o077) // as a user has it whose files are nobody else's business
	o := invoke(t, env, "ckpt", "restore", run, dir, "--fallback")
	unix.Umask(umask)
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stderr, "step 2 of", "the command names the step that it skips")
	require.Contains(t, o.stderr, "skipped step 2")
	restored(dir)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	info, err := entries[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode(), "the umask bounds who may read what is restored")

	// Readers have reported it: it is lost, and no longer latest.
	var step2 map[string]any
	require.Eventually(t, func() bool {
		steps := objects(t, works(t, env, "ckpt", "ls", run, "--json"))
		require.Len(t, steps, 2)
		step2 = steps[1]
		return step2["state"] == "lost"
	}, time.Minute, 200*time.Millisecond)
	require.Contains(t, step2["reason"], "rank-00000-of-00001.safetensors")
	shown := objects(t, works(t, env, "ckpt", "show", run, "--step", "2", "--json"))[0]
	lost := objectsIn(shown["lost_files"])
	require.Len(t, lost, 1)
	require.Equal(t, "rank-00000-of-00001.safetensors", lost[0]["path"])
	require.NotEmpty(t, objectsIn(lost[0]["ranges"]))
	require.Contains(t, works(t, env, "ckpt", "show", run, "--step", "2"), "rank-00000-of-00001.safetensors")
	requireRefused(t, invoke(t, env, "ckpt", "restore", run, t.TempDir(), "--step", "2"), 1, "lost")
	dir = t.TempDir()
	o = invoke(t, env, "ckpt", "restore", run, dir, "--json")
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stderr, "step 2 of "+run+" is newer and lost")
	restored(dir)

	requireRefused(t, invoke(t, env, "ckpt", "rm", run, "--step", "1"), 1, "last good", "--force")
	works(t, env, "ckpt", "verify", run)
	requireRefused(t, invoke(t, env, "ckpt", "rm", run, "--step", "9"), 1, run+": ", "no committed step 9", "ckpt ls")
	require.Contains(t, works(t, env, "ckpt", "rm", run, "--step", "1", "--force"), "is removed: attempt-1/step-1")
	requireRefused(t, invoke(t, env, "ckpt", "restore", run, t.TempDir()), 1, "ckpt ls")
	requireRefused(t, invoke(t, env, "ckpt", "rm", run, "--step", "2"), 1, "--force")
	works(t, env, "ckpt", "rm", run, "--step", "2", "--force")
	require.Empty(t, strings.TrimSpace(strings.Trim(works(t, env, "ckpt", "ls", run, "--json"), "[]\n")))
}
