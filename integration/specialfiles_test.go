package integration_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/internal/devcluster"
)

// The commands show special files, copy trees without them, and remove them. A clone
// of a tree has them.
func TestCommandsOnSpecialFiles(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c)
	env := settingsFor(c)
	tree := filepath.Join(m.dir, "tree")
	require.NoError(t, os.Mkdir(tree, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "file"), []byte("content"), 0o644))
	want := map[string]string{"file": "file"}
	for name, typ := range map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "char-device": unix.S_IFCHR, "block-device": unix.S_IFBLK} {
		if os.Geteuid() == 0 || typ == unix.S_IFIFO || typ == unix.S_IFSOCK {
			require.NoError(t, unix.Mknod(filepath.Join(tree, name), typ|0o600, 0))
			want[name] = name
		}
	}
	list := func(path string) map[string]string {
		types := map[string]string{}
		for _, e := range objects(t, works(t, env, "ls", path, "--json")) {
			types[e["path"].(string)] = e["type"].(string)
		}
		return types
	}
	require.Equal(t, want, list("moraine:///tree"))
	require.Equal(t, want, list(tree), "as local files")

	requireRefused(t, invoke(t, env, "cp", "moraine:///tree/fifo", filepath.Join(t.TempDir(), "f")), 1, "fifo", "no content")
	requireRefused(t, invoke(t, env, "cat", "moraine:///tree/fifo"), 1, "only a regular file has content")
	works(t, env, "cp", "-r", "moraine:///tree", "moraine:///clone")
	require.Equal(t, want, list("moraine:///clone"))
	down := filepath.Join(t.TempDir(), "down")
	for from, to := range map[string]string{"moraine:///tree": down, tree: "moraine:///up"} {
		o := invoke(t, env, "cp", "-r", from, to)
		require.Zero(t, o.code, o.stderr)
		require.Contains(t, o.stderr, "skipped")
		require.Equal(t, map[string]string{"file": "file"}, list(to))
	}
	var stat map[string]any
	require.NoError(t, json.Unmarshal([]byte(works(t, env, "stat", "moraine:///tree/socket", "--json")), &stat))
	require.Equal(t, "srw-------", stat["mode"])
	works(t, env, "rm", "moraine:///tree/fifo")
	works(t, env, "rm", "-r", "moraine:///tree")
	works(t, env, "fsck", "moraine:///clone")
	m.umount(t)
}
