package pebblevfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/internal/vfs/pebblevfs"
)

// TestADatabaseIsClosedToOthers has pebble make each of its kinds of files, and a
// checkpoint, on the machine's file system: other users of the machine can read
// none.
func TestADatabaseIsClosedToOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "db")
	db, err := pebble.Open(dir, &pebble.Options{FS: pebblevfs.New(vfs.OS{})})
	require.NoError(t, err)
	require.NoError(t, db.Set([]byte("k"), []byte("v"), pebble.Sync))
	require.NoError(t, db.Flush())
	require.NoError(t, db.Set([]byte("l"), []byte("v"), pebble.Sync))
	require.NoError(t, db.Checkpoint(filepath.Join(dir, "checkpoint"), pebble.WithFlushedWAL()))
	kinds := map[string]bool{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		require.Zero(t, info.Mode().Perm()&0o077, "%s has mode %v", name, info.Mode())
		kinds[filepath.Ext(name)] = true
		return err
	}))
	require.True(t, kinds[".sst"] && kinds[".log"], "%v", kinds)
	require.NoError(t, db.Close())
}
