package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestTheEnvironmentOfPyTorchNeedsSpace: the script that makes it stops with one sentence where the
// disk has too little room, before it downloads anything.
func TestTheEnvironmentOfPyTorchNeedsSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "df"), []byte("#!/bin/sh\necho Avail; echo 14999999999\n"), 0o755))
	cmd := exec.CommandContext(t.Context(), "../internal/tools/torch.sh")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "stock PyTorch needs 15 GB free in "+dir+"/moraine\n", string(out))
}

// TestPyTorch runs the tests of moraine.torch with stock PyTorch, against an agent, a cluster and a
// mount. The first run makes a Python environment of 5.4 GB outside of the checkout.
func TestPyTorch(t *testing.T) {
	if !long() {
		t.Skip("it needs stock PyTorch: make test-long")
	}
	t.Parallel()
	made, err := exec.Command("../internal/tools/torch.sh").Output()
	if exit, ok := err.(*exec.ExitError); ok {
		require.NoError(t, err, string(exit.Stderr))
	}
	require.NoError(t, err)
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c)
	a := newAgentProc(t, c)
	a.start()
	cli, err := binary()
	require.NoError(t, err)
	begun := time.Now()
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(made)), "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests_torch")
	cmd.Dir = "../python"
	cmd.Env = append(os.Environ(), "MORAINE_AGENT="+a.socket(), "MORAINE_TEST_MOUNT="+m.dir, "MORAINE_TEST_CLI="+cli, "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Env = append(cmd.Env, settingsFor(c)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), " passed")
	require.NotContains(t, string(out), "skipped")
	t.Logf("%s\n%s", time.Since(begun).Round(time.Second), out)
}
