package integration_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// TestAdoptCommand: a directory in the namespace becomes a step, and `ckpt restore` gives its files
// byte for byte by their paths. A half-written one is refused, and --always adopts by itself.
func TestAdoptCommand(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	metadata, err := os.ReadFile("../internal/pickle/testdata/dcp.metadata.4")
	require.NoError(t, err)
	files := map[string][]byte{".metadata": metadata, "__0_0.distcp": make([]byte, 3<<20), "__1_0.distcp": make([]byte, 5000), "extra/a%b/rng.pt": []byte("state"), "empty": nil}
	src := filepath.Join(t.TempDir(), "step-100")
	for name, data := range files {
		for i := range data {
			if name != ".metadata" {
				data[i] = byte(rng.Uint32())
			}
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(src, name), data, 0o644))
	}
	restored := func(run, step string) {
		t.Helper()
		dir := t.TempDir()
		works(t, env, "ckpt", "restore", run, dir, "--step", step)
		n := 0
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			n++
			name, err := filepath.Rel(dir, path)
			require.NoError(t, err)
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(files[name]), string(got), name)
			return nil
		}))
		require.Len(t, files, n)
	}
	const run = "moraine:///runs/job"
	works(t, env, "mkdir", "-p", "moraine:///scratch")
	works(t, env, "cp", "-r", src, "moraine:///scratch/step-100")
	require.Contains(t, works(t, env, "ckpt", "adopt", "moraine:///scratch/step-100", "--run", run, "--step", "100"), "is committed at level nvme")
	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch/step-100", "--run", run, "--step", "100"), 1, "adopted before as attempt-1/step-100")
	works(t, env, "rm", "-r", "moraine:///scratch/step-100")
	require.Contains(t, works(t, env, "ckpt", "verify", run), "adopted files")
	restored(run, "100")

	works(t, env, "cp", "-r", src, "moraine:///scratch/step-200")
	works(t, env, "rm", "moraine:///scratch/step-200/__1_0.distcp")
	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch/step-200", "--run", run, "--step", "200"), 1, "__1_0.distcp, which .metadata lists, is missing")
	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch/step-200", "--run", run), 2, "--step")
	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch", "--always", "dcp", "--step", "1"), 2, "--always")

	requireRefused(t, invoke(t, env, "ckpt", "adopt", "moraine:///scratch", "--always", "dcp", "--complete"), 2, "--always")

	model := filepath.Join(t.TempDir(), "iter_0000050")
	require.NoError(t, os.MkdirAll(filepath.Join(model, "mp_rank_00"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(model, "mp_rank_00", "model_optim_rng.pt"), []byte("weights"), 0o644))
	works(t, env, "cp", "-r", model, "moraine:///scratch/iter_0000050")
	byHand := []string{"ckpt", "adopt", "moraine:///scratch/iter_0000050", "--run", "moraine:///runs/megatron", "--step", "50", "--format", "megatron"}
	requireRefused(t, invoke(t, env, byHand...), 1, "there is no /scratch/latest_checkpointed_iteration.txt")
	require.Contains(t, works(t, env, append(byHand, "--complete")...), "is committed at level nvme")

	works(t, env, "ckpt", "adopt", "moraine:///scratch", "--always", "dcp")
	works(t, env, "cp", "-r", src, "moraine:///scratch/step-300")
	require.Eventually(t, func() bool {
		return invoke(t, env, "ckpt", "show", "moraine:///scratch", "--step", "300").code == 0
	}, 2*time.Minute, 500*time.Millisecond)
	restored("moraine:///scratch", "300")
}
