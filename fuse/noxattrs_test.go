package fuse_test

import (
	"os"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A mount without extended attributes refuses them, and the kernel does not request them. Another mount
// of the same cluster has them.
func TestAMountWithoutXattrs(t *testing.T) {
	c := startCluster(t, incluster.Options{})
	with := mount(t, c, "with")
	without := mount(t, c, "without", mountOptions{mount: fuse.Config{NoXattrs: true}})
	require.NoError(t, os.WriteFile(with.at("f"), []byte("bytes"), 0o644))
	require.NoError(t, unix.Setxattr(with.at("f"), "user.colour", []byte("red"), 0))
	value := make([]byte, 16)
	_, err := unix.Getxattr(without.at("f"), "user.colour", value)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	require.ErrorIs(t, unix.Setxattr(without.at("f"), "user.colour", []byte("blue"), 0), unix.EOPNOTSUPP)
	require.ErrorIs(t, unix.Removexattr(without.at("f"), "user.colour"), unix.EOPNOTSUPP)
	list := []byte("\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\x01\x00\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff") // user 1 may read
	require.NoError(t, unix.Setxattr(with.at("f"), moraine.AccessACL, list, 0))
	_, err = unix.Getxattr(without.at("f"), moraine.AccessACL, make([]byte, 64))
	require.Error(t, err, "a list is shown")
	require.ErrorIs(t, unix.Setxattr(without.at("f"), moraine.AccessACL, list, 0), unix.EOPNOTSUPP)
	data, err := os.ReadFile(without.at("f"))
	require.NoError(t, err)
	require.Equal(t, "bytes", string(data))
	n, err := unix.Getxattr(with.at("f"), "user.colour", value)
	require.NoError(t, err)
	require.Equal(t, "red", string(value[:n]))
}
