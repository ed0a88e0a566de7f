package vfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
)

// TestWhatIsMadeIsClosedToOthers calls everything in the machine's file system that
// makes a file or directory: other users of the machine may not even read it.
func TestWhatIsMadeIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, flag := range map[string]vfs.OpenFlag{
		"plain": vfs.Create, "direct": vfs.Create | vfs.Direct, "new": vfs.Create | vfs.Exclusive,
		"new direct": vfs.Create | vfs.Exclusive | vfs.Direct, "empty": vfs.Create | vfs.Truncate,
	} {
		f, err := vfs.OS{}.Open(at(name), flag)
		require.NoError(t, err, name)
		require.NoError(t, f.Close())
	}
	lock, err := vfs.OS{}.Lock(at("lock"))
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	require.NoError(t, vfs.OS{}.MkdirAll(at("a/b")))
	made := 0
	require.NoError(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		made++
		info, err := d.Info()
		if err == nil {
			require.Zero(t, info.Mode().Perm()&0o077, "%s has mode %v", name, info.Mode())
		}
		return err
	}))
	require.Equal(t, 8, made)
}
