package vfs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
)

func writeFile(t *testing.T, fs vfs.FS, name, text string, sync bool) {
	t.Helper()
	f, err := fs.Open(name, vfs.Create)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(text), 0)
	require.NoError(t, err)
	if sync {
		require.NoError(t, f.Sync())
	}
	require.NoError(t, f.Close())
}

func textOf(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name, vfs.Read)
	require.NoError(t, err)
	defer f.Close()
	p := make([]byte, 3)
	_, err = f.ReadAt(p, 0)
	require.NoError(t, err)
	return string(p)
}

// A clone has everything, separates from its original, and has durable only what
// was durable.
func TestClone(t *testing.T) {
	m := vfs.NewMem(1)
	require.NoError(t, m.MkdirAll("/d"))
	require.NoError(t, m.SyncDir("/"))
	writeFile(t, m, "/d/kept", "one", true)
	require.NoError(t, m.SyncDir("/d"))
	writeFile(t, m, "/d/kept", "two", false)
	writeFile(t, m, "/d/new", "new", true)
	_, err := m.Lock("/d/lock")
	require.NoError(t, err)

	c := m.Clone()
	_, err = c.Lock("/d/lock")
	require.NoError(t, err, "the holder's process is gone")
	writeFile(t, m, "/d/kept", "old", false)
	require.Equal(t, "two", textOf(t, c, "/d/kept"))
	require.Equal(t, "new", textOf(t, c, "/d/new"))

	kept, names := map[string]bool{}, map[int]bool{}
	for range 200 {
		after := c.Crash(nil)
		kept[textOf(t, after, "/d/kept")] = true
		all, err := after.List("/d")
		require.NoError(t, err)
		names[len(all)] = true
	}
	require.Equal(t, map[string]bool{"one": true, "two": true}, kept)
	require.Contains(t, names, 1, "the name of a new file is not kept by syncing the file")

	require.NoError(t, c.SyncDir("/d"))
	writeFile(t, c, "/d/kept", "two", true)
	for range 50 {
		after := c.Crash(nil)
		require.Equal(t, "two", textOf(t, after, "/d/kept"))
		require.Equal(t, "new", textOf(t, after, "/d/new"))
	}
}
