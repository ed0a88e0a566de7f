package fuse_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
)

// A full quota is EDQUOT, and what is below one looks like a disk of its size.
func TestQuota(t *testing.T) {
	c := startCluster(t, incluster.Options{})
	admin, err := c.Admin(t.Context(), "admin")
	require.NoError(t, err)
	defer admin.Close()
	dir, err := admin.Mkdir(t.Context(), "/team", 0o777)
	require.NoError(t, err)
	inode := dir.Inode()
	require.NoError(t, admin.Quotas().Set(t.Context(), inode, 1<<20, 4))
	m := mount(t, c, "c1", mountOptions{mount: fuse.Config{Root: inode}})

	f, err := os.Create(m.at("f"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(randomBytes(1, 1<<20))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	_, err = f.Write([]byte("more"))
	require.ErrorIs(t, err, syscall.EDQUOT)
	_, err = f.WriteAt([]byte("in place"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.ErrorIs(t, f.Truncate(2<<20), syscall.EDQUOT)

	top := mount(t, c, "c2")
	for _, path := range []string{m.dir, m.at("f"), top.at("team"), top.at("team/f")} {
		var fs unix.Statfs_t
		require.NoError(t, unix.Statfs(path, &fs))
		require.EqualValues(t, 1<<20, fs.Blocks*uint64(fs.Frsize), path)
		require.Zero(t, fs.Bavail)
		require.EqualValues(t, 3, fs.Ffree)
		require.EqualValues(t, 4, fs.Files)
	}
	var whole, below unix.Statfs_t
	require.NoError(t, unix.Statfs(top.dir, &whole))
	require.Greater(t, whole.Blocks*uint64(whole.Frsize), uint64(1<<20), "the quota is of a directory below")

	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.Mkdir(m.at(name), 0o755))
	}
	require.ErrorIs(t, os.Mkdir(m.at("d"), 0o755), syscall.EDQUOT)
	require.NoError(t, unix.Statfs(top.at("team/a"), &below))
	require.EqualValues(t, 1<<20, below.Blocks*uint64(below.Frsize), "the quota is of the directory above")
	require.EqualValues(t, 4, below.Files)
	require.NoError(t, os.Remove(m.at("a")))
	require.NoError(t, os.Mkdir(m.at("d"), 0o755))
}
