package mountcmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
)

// The directory of logs and records of mounts may be in /tmp. Another user can make a
// directory of that name first.
func TestMountFilesAreInADirectoryOfTheUser(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	require.NoError(t, privateDirectory(own))
	require.NoError(t, privateDirectory(own), "it is there already")
	st, err := os.Stat(own)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), st.Mode().Perm())

	open := filepath.Join(dir, "open")
	require.NoError(t, os.Mkdir(open, 0o777))
	require.NoError(t, os.Chmod(open, 0o777))
	require.ErrorIs(t, privateDirectory(open), moraine.PermissionDenied, "others may write to it")
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(own, link))
	require.ErrorIs(t, privateDirectory(link), moraine.PermissionDenied, "a link")
	if os.Geteuid() != 0 {
		return // only root can give a directory away
	}
	theirs := filepath.Join(dir, "theirs")
	require.NoError(t, os.Mkdir(theirs, 0o700))
	require.NoError(t, os.Chown(theirs, 54321, 54321))
	require.ErrorIs(t, privateDirectory(theirs), moraine.PermissionDenied, "it is another user's")
}
