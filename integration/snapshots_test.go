package integration_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// snapshotsHold makes, lists, copies and removes snapshots as a user does.
func snapshotsHold(t *testing.T, env []string) {
	t.Helper()
	const top = "moraine:///kept"
	works(t, env, "mkdir", top)
	works(t, env, "cp", fileOf(t, 1000), top+"/f")
	made := listing{args: "snapshot create", keys: "snapshot entries"}
	out := works(t, env, "snapshot", "create", top, "one", "--json")
	made.hold(t, out)
	require.Equal(t, []map[string]any{{"snapshot": top + "/.snapshots/one", "entries": 1.0}}, objects(t, out))
	works(t, env, "snapshot", "create", top) // named for the time
	requireRefused(t, invoke(t, env, "snapshot", "create", top, "one"), 1, "snapshot rm")
	for _, name := range []string{"..", "", ".", "a/b"} {
		requireRefused(t, invoke(t, env, "snapshot", "create", top, name), 2, "name alone")
		requireRefused(t, invoke(t, env, "snapshot", "rm", top, name), 2, "name alone")
	}
	requireRefused(t, invoke(t, env, "snapshot", "create", top+"/nope", "one"), 1, "not found")

	all := listing{args: "snapshot ls", keys: "name made bytes path"}
	out = works(t, env, "snapshot", "ls", top, "--json")
	all.hold(t, out)
	require.Len(t, objects(t, out), 2)
	require.Equal(t, 1000.0, objects(t, out)[1]["bytes"])

	works(t, env, "cp", fileOf(t, 2000), top+"/f")
	requireRefused(t, invoke(t, env, "rm", top+"/.snapshots/one/f"), 1, "snapshot rm")
	works(t, env, "cp", "-r", top+"/.snapshots/one", top+"-copy")
	to := filepath.Join(t.TempDir(), "local")
	works(t, env, "cp", "-r", top, to)
	entries, err := os.ReadDir(to)
	require.NoError(t, err)
	require.Len(t, entries, 1, "a copy of the directory has its snapshots")
	require.Equal(t, 1000.0, objects(t, works(t, env, "stat", top+"-copy/f", "--json"))[0]["size"])

	works(t, env, "snapshot", "rm", top, "one")
	requireRefused(t, invoke(t, env, "snapshot", "rm", top, "one"), 1, "not found")
	require.Len(t, objects(t, works(t, env, "snapshot", "ls", top, "--json")), 1)

	for _, args := range [][]string{{"cp", fileOf(t, 10), top + "/caf\xe9"}, {"snapshot", "create", top, "caf\xe9"}, {"snapshot", "ls", top}} {
		require.Contains(t, string(works(t, env, append(args, "--json")...)), `caf\udce9"`, "%q", args)
	}
	works(t, env, "rm", "-r", top, top+"-copy")
}
