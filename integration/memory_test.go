package integration_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestMemoryLevelOverProcesses copies files in with --ack memory. At any moment
// after the answer it kills m chunkservers, kills all of them, or sends all of them
// SIGTERM. With up to m killed, and after SIGTERM, every file is there byte for
// byte. With all killed each file is either complete or lost, by name and range,
// and its reads fail.
func TestMemoryLevelOverProcesses(t *testing.T) {
	t.Parallel()
	s := seed(t)
	rng := random(s)
	c := startProcs(t, devcluster.Config{Chunkservers: 6})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	lost := 0
	for round := range rounds(3, 30) {
		data := make([]byte, 1+rng.IntN(rounds(8, 48)<<20))
		_, _ = rand.NewChaCha8([32]byte{byte(s), byte(round)}).Read(data)
		name := fmt.Sprintf("moraine:///f%d", round)
		local := filepath.Join(t.TempDir(), "in")
		require.NoError(t, os.WriteFile(local, data, 0o644))
		done := objects(t, works(t, env, "cp", "--ack", "memory", "--json", local, name))[0]
		require.Contains(t, []any{"memory", "nvme"}, done["level"])
		time.Sleep(time.Duration(rng.Int64N(int64(30 * time.Millisecond))))
		nodes := c.Nodes(devcluster.Chunkserver)
		how := []string{"m killed", "all killed", "all terminated"}[round%3]
		if how == "m killed" {
			nodes = nodes[:2]
		}
		for _, n := range nodes {
			if how == "all terminated" {
				require.NoError(t, n.Stop(time.Minute))
			} else {
				require.NoError(t, n.Kill())
			}
		}
		for _, n := range nodes {
			require.NoError(t, n.Start())
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		level := ""
		require.Eventually(t, func() bool {
			level, _ = objects(t, works(t, env, "stat", "--json", name))[0]["level"].(string)
			return level == "nvme" || level == "lost"
		}, 2*time.Minute, 200*time.Millisecond, "%s after %s", name, how)
		listed := strings.Contains(works(t, env, "cluster", "lost", "--json"), fmt.Sprintf(`"/f%d"`, round))
		require.Equal(t, level == "lost", listed, "the list of what is lost, after %s", how)
		out := invoke(t, env, "cat", name)
		if level == "lost" {
			require.Equal(t, "all killed", how)
			require.NotZero(t, out.code, "a lost file was read")
			lost++
			continue
		}
		require.Zero(t, out.code, out.stderr)
		require.True(t, bytes.Equal(data, []byte(out.stdout)), "other bytes after %s", how)
	}
	t.Logf("seed %d: %d files lost, all of them named", s, lost)
}
