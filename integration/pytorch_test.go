package integration_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestPyTorch runs the tests of moraine.torch with stock PyTorch, against an agent, a cluster and a
// mount. The first run makes a Python environment of 5.4 GB outside of the checkout.
func TestPyTorch(t *testing.T) {
	if !long() {
		t.Skip("it needs stock PyTorch: make test-long")
	}
	made, err := exec.Command("../internal/tools/torch.sh").Output()
	if exit, ok := err.(*exec.ExitError); ok {
		require.NoError(t, err, string(exit.Stderr))
	}
	require.NoError(t, err)
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c)
	a := newAgentProc(t, c)
	a.start()
	begun := time.Now()
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(string(made)), "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests_torch")
	cmd.Dir = "../python"
	cmd.Env = append(os.Environ(), "MORAINE_AGENT="+a.socket(), "MORAINE_TEST_MOUNT="+m.dir, "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), " passed")
	require.NotContains(t, string(out), "skipped")
	t.Logf("%s\n%s", time.Since(begun).Round(time.Second), out)
}
