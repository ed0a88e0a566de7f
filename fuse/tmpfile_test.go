package fuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// linkFd gives an open file a name.
func linkFd(fd int, path string) error {
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
}

// A file opened with O_TMPFILE has no name until it is linked, as on a local file
// system. Without a name it is freed at its close.
func TestTmpfile(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	sameAsLocal(t, m, func(t *testing.T, l *callLog, dir string) {
		open := func(flags int) int {
			fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|flags, 0o640)
			require.NoError(t, err)
			t.Cleanup(func() { _ = unix.Close(fd) })
			return fd
		}
		links := func(fd int) {
			var st unix.Stat_t
			l.did("fstat", unix.Fstat(fd, &st), st.Nlink, st.Size, fmt.Sprintf("%o", st.Mode))
		}
		fd := open(0)
		links(fd)
		n, err := unix.Write(fd, []byte("without a name"))
		l.did("write", err, n)
		links(fd)
		entries, err := os.ReadDir(dir)
		l.did("list", err, len(entries))
		l.did("link", linkFd(fd, filepath.Join(dir, "named")))
		links(fd)
		l.did("link again", linkFd(fd, filepath.Join(dir, "twin")))
		l.did("link over", linkFd(fd, filepath.Join(dir, "twin")))
		n, err = unix.Write(fd, []byte(", and with two"))
		l.did("write", err, n)
		l.did("close", unix.Fsync(fd))
		l.content(filepath.Join(dir, "twin"))
		l.did("unlink", unix.Unlink(filepath.Join(dir, "twin")))
		l.did("link of an exclusive one", linkFd(open(unix.O_EXCL), filepath.Join(dir, "never")))
		_, err = unix.Open(filepath.Join(dir, "named"), unix.O_TMPFILE|unix.O_RDWR, 0o600)
		l.did("in a file", err)
	})
	var st unix.Stat_t
	require.NoError(t, unix.Stat(other.at(t.Name()+"/named"), &st))
	require.EqualValues(t, len("without a name, and with two"), st.Size)

	fd, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	require.NoError(t, err)
	require.NoError(t, unix.Fstat(fd, &st))
	require.NoError(t, unix.Close(fd))
	require.Eventually(t, func() bool {
		_, err := m.client.Inodes().Stat(t.Context(), moraine.InodeID(st.Ino))
		return moraine.KindOf(err) == moraine.NotFound
	}, time.Minute, 10*time.Millisecond, "it is freed")
}

// A rename with RENAME_WHITEOUT leaves a whiteout at the old name, as on a local file
// system.
func TestRenameLeavesAWhiteout(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may make whiteouts in some kernels")
	}
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	sameAsLocal(t, m, func(t *testing.T, l *callLog, dir string) {
		at := func(name string) string { return filepath.Join(dir, name) }
		rename := func(from, to string, flags uint) {
			l.did(fmt.Sprint("rename ", from, " to ", to, " with ", flags), unix.Renameat2(unix.AT_FDCWD, at(from), unix.AT_FDCWD, at(to), flags))
			l.stat(at(from))
			l.stat(at(to))
		}
		for _, name := range []string{"a", "b"} {
			require.NoError(t, os.WriteFile(at(name), []byte(name), 0o644))
		}
		require.NoError(t, os.Mkdir(at("dir"), 0o755))
		rename("a", "new", unix.RENAME_WHITEOUT)
		rename("b", "new", unix.RENAME_WHITEOUT|unix.RENAME_NOREPLACE)
		rename("b", "new", unix.RENAME_WHITEOUT)
		rename("dir", "dir2", unix.RENAME_WHITEOUT)
		rename("new", "dir", unix.RENAME_WHITEOUT|unix.RENAME_EXCHANGE)
		rename("missing", "x", unix.RENAME_WHITEOUT)
		rename("a", "x", unix.RENAME_WHITEOUT)
		l.did("unlink", unix.Unlink(at("a")))
		l.content(at("new"))
	})
}
