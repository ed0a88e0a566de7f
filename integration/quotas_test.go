package integration_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// quotasHold gives a directory a quota from the command line. It checks that the
// cluster accepts writes up to the quota, and none past it, and that the commands
// report it correctly.
func quotasHold(t *testing.T, env []string) {
	t.Helper()
	const top, capacity = "moraine:///team", 1 << 20
	small, large := fileOf(t, 300_000), fileOf(t, 800_000)
	works(t, env, "mkdir", top)
	works(t, env, "quota", "set", "--capacity", "1MiB", "--inodes", "3", top)
	works(t, env, "cp", small, top+"/small")

	quota := listing{args: "quota get", keys: "path bytes inodes limited room_bytes room_inodes quota_path quota_bytes quota_inodes"}
	requireRoom := func(bytes, inodes int) {
		t.Helper()
		out := works(t, env, "quota", "get", top, "--json")
		quota.hold(t, out)
		require.Equal(t, []map[string]any{{"path": top, "bytes": float64(bytes), "inodes": float64(inodes), "limited": true,
			"room_bytes": float64(capacity - bytes), "room_inodes": float64(3 - inodes),
			"quota_path": "/team", "quota_bytes": float64(capacity), "quota_inodes": 3.0}}, objects(t, out))
	}
	requireListed := func(bytes, inodes, ofBytes, ofInodes int) {
		t.Helper()
		require.Equal(t, []map[string]any{{"path": "/team", "bytes": float64(bytes), "inodes": float64(inodes),
			"quota_bytes": float64(ofBytes), "quota_inodes": float64(ofInodes)}}, objects(t, works(t, env, "quota", "ls", "--json")))
	}
	requireRoom(300_000, 1)
	requireListed(300_000, 1, capacity, 3)
	requireRefused(t, invoke(t, env, "cp", large, top+"/large"), 1, "quota exceeded", "/team")
	requireRefused(t, invoke(t, env, "stat", top+"/large"), 1, "not found")
	requireRefused(t, invoke(t, env, "cp", fileOf(t, 1_100_000), top+"/small"), 1, "quota exceeded", "/team")
	requireRoom(300_000, 1)
	works(t, env, "cp", large, top+"/small") // in place of the existing file
	requireRoom(800_000, 1)
	works(t, env, "cp", small, top+"/small")

	works(t, env, "mkdir", top+"/a", top+"/a/b")
	requireRefused(t, invoke(t, env, "mkdir", top+"/a/c"), 1, "quota exceeded", "/team")
	requireRefused(t, invoke(t, env, "cp", small, top+"/a/b/c"), 1, "quota exceeded", "/team")
	requireRoom(300_000, 3)
	works(t, env, "rm", top+"/small")
	works(t, env, "cp", large, top+"/large")
	requireRoom(800_000, 3)

	works(t, env, "quota", "set", "--capacity", "none", top)
	requireListed(800_000, 3, 0, 3)
	works(t, env, "quota", "set", "--capacity", "1KiB", "--inodes", "none", top) // below the current use
	requireListed(800_000, 3, 1<<10, 0)
	requireRefused(t, invoke(t, env, "cp", small, top+"/more"), 1, "quota exceeded", "/team")
	checked := objects(t, works(t, env, "quota", "check", top, "--json"))[0]
	require.Equal(t, true, checked["correct"])
	require.EqualValues(t, 800_000, checked["bytes"])

	requireRefused(t, invoke(t, env, "quota", "set", top), 2, "--capacity")
	requireRefused(t, invoke(t, env, "quota", "set", "--inodes", "0", top), 2, "--inodes")
	requireRefused(t, invoke(t, env, "quota", "set", "--inodes", "9", top+"/large"), 2, "not a directory")
	works(t, env, "quota", "set", "--capacity", "none", "--inodes", "none", top)
	require.Empty(t, works(t, env, "quota", "ls", "--json"))
	works(t, env, "cp", small, top+"/more")
	works(t, env, "rm", "-r", top)
}

// fileOf makes a file of so many bytes.
func fileOf(t *testing.T, size int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, make([]byte, size), 0o644))
	return name
}
