package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestSafetensorsReadsAStep: the stock safetensors package of Python reads the files of a committed
// step from a mount, and the objects that the step was flushed to from the bucket.
func TestSafetensorsReadsAStep(t *testing.T) {
	t.Parallel()
	python, err := filepath.Abs(filepath.Join(pythonEnv, "python"))
	require.NoError(t, err)
	require.FileExists(t, python, "`make setup` makes it")
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	m := mountCluster(t, c)
	a := newAgentProc(t, c)
	a.start()
	_, server := bucketOf(t, c)
	keys, err := server.BucketEnv()
	require.NoError(t, err)
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/safetensors_step.py"}, args...)...)
		cmd.Env = append(append(os.Environ(), keys...), "MORAINE_AGENT="+a.socket(), "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1",
			"AWS_DEFAULT_REGION=us-east-1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	run("save", "/runs/s")
	run("files", filepath.Join(m.dir, "runs/s/latest"))
	out, err := m.moraine("flush", "--wait", "moraine:///runs/s")
	require.NoError(t, err, out)
	run("bucket", "http://"+server.Address, devcluster.LocalBucket)
	m.umount(t)
}
