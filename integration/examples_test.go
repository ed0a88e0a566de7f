package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestExamplesRun builds the programs in examples/ and runs each against a cluster,
// as a reader would.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	for name, says := range map[string][]string{
		"checkpoint": {"rank 3 saved step", "rank 2 restored 400 rows"},
		"dataset":    {"read 4 shards in order: 16777216 bytes", "read 100 samples at random"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), buildExample(t, name))
			cmd.Env = append(os.Environ(), "MORAINE_ENDPOINT="+c.Endpoint(), "MORAINE_CERTS="+c.Certs(), "MORAINE_IDENTITY=admin", "MORAINE_MODE="+c.Mode())
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			for _, text := range says {
				require.Contains(t, string(out), text)
			}
			t.Logf("%s", out)
		})
	}
}

// buildExample builds a program of examples/.
func buildExample(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	// As devcluster.Build does, so that both use the same compiled packages.
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "github.com/morainefs/moraine/examples/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}
