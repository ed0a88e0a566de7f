package fuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An extended attribute outside of the namespaces of Linux is refused by every call,
// as on a local disk.
func TestNamesOfExtendedAttributes(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	path := mount(t, c, "c1").at("file")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	for name, want := range map[string]error{"nonsense": unix.EOPNOTSUPP, "other.a": unix.EOPNOTSUPP, "user": unix.EOPNOTSUPP, "user.": unix.EINVAL} {
		require.ErrorIs(t, unix.Setxattr(path, name, []byte("value"), 0), want, name)
		_, err := unix.Getxattr(path, name, make([]byte, 10))
		require.ErrorIs(t, err, want, name)
		require.ErrorIs(t, unix.Removexattr(path, name), want, name)
	}
	require.NoError(t, unix.Setxattr(path, "user.a", []byte("value"), 0))
}

// A file without a label of SELinux answers that the file system has no such labels. Programs that read
// the label of each file then stop: a listing reads at most one attribute for each. A label that was
// set is there.
func TestLabelsOfSELinux(t *testing.T) {
	if _, err := os.Stat("/sys/fs/selinux"); err == nil {
		t.Skip("this kernel answers labels by itself")
	}
	const label = "security.selinux"
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	path := m.at("d/f0")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	const files = 40
	for i := range files {
		require.NoError(t, os.WriteFile(m.at(fmt.Sprint("d/f", i)), nil, 0o644))
	}
	value := make([]byte, 64)
	_, err := unix.Getxattr(path, label, value)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	_, err = unix.Getxattr(path, "security.other", value)
	require.ErrorIs(t, err, unix.ENODATA)

	before := m.fsys.Observer().Snapshot()
	shell(t, `ls -l "$1"`, filepath.Dir(path))
	since := m.fsys.Observer().Snapshot().Since(before)
	require.Less(t, since["getxattr"].Count+since["listxattr"].Count, uint64(files+10), "%v", since)

	require.NoError(t, unix.Setxattr(path, label, []byte("u:r:t"), 0))
	n, err := unix.Getxattr(path, label, value)
	require.NoError(t, err)
	require.Equal(t, "u:r:t", string(value[:n]))
	n, err = unix.Listxattr(path, value)
	require.NoError(t, err)
	require.Equal(t, label+"\x00", string(value[:n]))
	_, err = unix.Getxattr(path, "user.other", value)
	require.ErrorIs(t, err, unix.ENODATA)
	require.NoError(t, unix.Removexattr(path, label))
	_, err = unix.Getxattr(path, label, value)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
}
