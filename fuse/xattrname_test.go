package fuse_test

import (
	"os"
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
