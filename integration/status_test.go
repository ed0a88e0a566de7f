package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// A host that ends, and one that starts again, is not green before that is noticed: the
// status goes by what it says after it was asked for.
func TestStatusAfterARestart(t *testing.T) {
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	works(t, env, "cp", "/proc/self/status", "moraine:///f")
	n := c.Nodes(devcluster.Chunkserver)[0]
	require.NoError(t, n.Kill())
	o := invoke(t, env, "cluster", "status", "--json")
	require.Equal(t, 3, o.code, "asked at once: %s", o.stdout)
	require.NoError(t, n.Start())
	works(t, env, "cluster", "status", "--wait", "1m")
	status := objects(t, works(t, env, "cluster", "status", "--json"))[0]
	for _, h := range objectsIn(status["hosts"]) {
		require.Equal(t, "up", h["status"])
		require.Equal(t, true, h["reports_complete"])
	}
}
