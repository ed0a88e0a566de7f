package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// After a host stops, or restarts, the status is not green before the cluster
// notices. The status uses reports that arrive after the command started.
func TestStatusAfterARestart(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	works(t, env, "cp", "/proc/self/status", "moraine:///f")
	n := c.Nodes(devcluster.Chunkserver)[0]
	require.NoError(t, n.Kill())
	o := invoke(t, env, "cluster", "status", "--json")
	require.Equal(t, 3, o.code, "queried at once: %s", o.stdout)
	require.NoError(t, n.Start())
	works(t, env, "cluster", "status", "--wait", "1m")
	status := objects(t, works(t, env, "cluster", "status", "--json"))[0]
	for _, h := range objectsIn(status["hosts"]) {
		require.Equal(t, "up", h["status"])
		require.Equal(t, true, h["reports_complete"])
	}
}
