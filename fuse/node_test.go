package fuse_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sameAsLocal runs calls in a directory of a mount and in one of a local file system,
// and requires the same results of each. do adds a line for each result.
func sameAsLocal(t *testing.T, m *mounted, do func(t *testing.T, l *callLog, dir string)) {
	t.Helper()
	var logs [2]callLog
	for i, dir := range []string{t.TempDir(), m.at(filepath.Base(t.Name()))} {
		if i == 1 {
			require.NoError(t, os.Mkdir(dir, 0o755))
		}
		require.NoError(t, os.Chmod(dir, 0o755))
		do(t, &logs[i], dir)
	}
	require.NotEmpty(t, logs[0].lines)
	require.Equal(t, strings.Join(logs[0].lines, "\n"), strings.Join(logs[1].lines, "\n"), "first the local file system, then the mount")
}

// callLog collects the results of calls as text.
type callLog struct{ lines []string }

// did adds what a call returned.
func (l *callLog) did(call string, err error, results ...any) {
	result := "ok"
	var errno syscall.Errno
	if errors.As(err, &errno) {
		result = unix.ErrnoName(errno)
	} else if err != nil {
		result = fmt.Sprintf("%T", err)
	}
	l.lines = append(l.lines, fmt.Sprint(call, ": ", result, " ", results))
}

// stat adds the attributes of a path that do not depend on the file system.
func (l *callLog) stat(path string) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	links := st.Nlink
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		links = 0 // some file systems do not count directories
	}
	l.did("stat "+filepath.Base(path), err, fmt.Sprintf("mode %o, %d links, device %x, %d bytes, owner %d:%d", st.Mode, links, st.Rdev, st.Size*int64(min(links, 1)), st.Uid, st.Gid))
}

// specialTypes are the types of special files that the process may make.
func specialTypes() map[string]uint32 {
	types := map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK}
	if os.Geteuid() == 0 {
		types["char"], types["block"] = unix.S_IFCHR, unix.S_IFBLK
	}
	return types
}

// Special files have the attributes, and answer the calls, as on a local file system.
func TestSpecialFiles(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1"), mount(t, c, "c2")
	for name, typ := range specialTypes() {
		t.Run(name, func(t *testing.T) {
			sameAsLocal(t, m, func(_ *testing.T, l *callLog, dir string) { specialCalls(l, dir, typ) })
			for _, dir := range []string{m.at(name), other.at(name)} { // under both mounts
				var l callLog
				l.stat(filepath.Join(dir, "moved"))
				require.Contains(t, l.lines[0], fmt.Sprintf("mode %o", typ|0o4711))
				entries, err := os.ReadDir(dir)
				require.NoError(t, err)
				types := map[string]fs.FileMode{}
				for _, e := range entries {
					types[e.Name()] = e.Type()
				}
				info, err := os.Lstat(filepath.Join(dir, "moved"))
				require.NoError(t, err)
				require.Equal(t, info.Mode().Type(), types["moved"], "the type in a listing")
				if typ == unix.S_IFCHR || typ == unix.S_IFBLK {
					_, err = os.Open(filepath.Join(dir, "moved"))
					require.ErrorIs(t, err, unix.EACCES, "a mount opens no devices")
				}
			}
		})
	}
}

// specialCalls makes the calls of TestSpecialFiles, and leaves a file "moved".
func specialCalls(l *callLog, dir string, typ uint32) {
	at := func(name string) string { return filepath.Join(dir, name) }
	dev := 0
	if typ == unix.S_IFCHR || typ == unix.S_IFBLK {
		dev = int(unix.Mkdev(259, 1<<12|7))
	}
	l.did("mknod", unix.Mknod(at("node"), typ|0o640, dev))
	l.stat(at("node"))
	l.did("mknod again", unix.Mknod(at("node"), typ|0o640, dev))
	l.did("create", unix.Mkdir(at("node"), 0o755))
	_, err := os.ReadDir(at("node"))
	l.did("list", err)
	l.did("stat below", unix.Stat(at("node/x"), &unix.Stat_t{}))
	l.did("truncate", unix.Truncate(at("node"), 7))
	l.did("link", unix.Link(at("node"), at("twin")))
	l.did("chmod", unix.Chmod(at("twin"), 0o4711))
	l.stat(at("node"))
	l.did("rename to the other name", unix.Rename(at("node"), at("twin")))
	l.did("unlink", unix.Unlink(at("node")))
	l.stat(at("twin"))
	l.did("rename", unix.Rename(at("twin"), at("moved")))
	l.did("rmdir", unix.Rmdir(at("moved")))
	if os.Geteuid() == 0 {
		l.did("chown", unix.Lchown(at("moved"), 1000, 1001))
		l.stat(at("moved"))
		l.did("setuid and setgid", unix.Chmod(at("moved"), 0o6755))
		l.did("chown", unix.Lchown(at("moved"), 1002, -1))
		l.stat(at("moved"))
	}
	l.did("a file", os.WriteFile(at("file"), []byte("text"), 0o644))
	l.did("rename over it", unix.Rename(at("moved"), at("file")))
	l.stat(at("file"))
	l.did("a file over the node", os.WriteFile(at("new"), []byte("longer"), 0o644))
	l.did("rename back", unix.Rename(at("new"), at("file")))
	l.stat(at("file"))
	l.did("mknod", unix.Mknod(at("moved"), typ|0o640, dev))
	l.did("chmod", unix.Chmod(at("moved"), 0o4711))
	l.did("an xattr", unix.Setxattr(at("moved"), "user.x", []byte("value"), 0))
}

// Two processes of one host talk over a fifo and over a socket of a mount.
func TestFifosAndSocketsCarryBytes(t *testing.T) {
	m := mount(t, startCluster(t, incluster.Options{Seed: 1}), "c1")
	require.NoError(t, unix.Mkfifo(m.at("fifo"), 0o600))
	sent := make(chan error, 1)
	go func() { sent <- os.WriteFile(m.at("fifo"), []byte("through the fifo"), 0) }()
	got, err := os.ReadFile(m.at("fifo"))
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.Equal(t, "through the fifo", string(got))

	fd, err := unix.Open(m.at("fifo"), unix.O_RDWR|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer unix.Close(fd) //nolint:errcheck // it has no content
	require.NoError(t, unix.Unlink(m.at("fifo")))
	require.ErrorIs(t, unix.Fstat(fd, &unix.Stat_t{}), unix.ESTALE, "the mount does not know that it is open")

	ln, err := net.Listen("unix", m.at("socket"))
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		if conn, err := net.Dial("unix", m.at("socket")); err == nil {
			_, _ = conn.Write([]byte("through the socket"))
			_ = conn.Close()
		}
	}()
	conn, err := ln.Accept()
	require.NoError(t, err)
	defer conn.Close()
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "through the socket", string(buf[:n]))
}

// New entries of a directory with the setgid bit get its group, and new directories
// the bit, whatever makes them.
func TestSetgidDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives a directory a group of which it is no member")
	}
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	sameAsLocal(t, m, func(_ *testing.T, l *callLog, dir string) {
		at := func(name string) string { return filepath.Join(dir, name) }
		l.did("chown", unix.Chown(dir, 0, 4711))
		l.did("chmod", unix.Chmod(dir, 0o2775))
		l.did("create", os.WriteFile(at("file"), nil, 0o644))
		l.did("mknod", unix.Mknod(at("regular"), unix.S_IFREG|0o600, 0))
		l.did("mkfifo", unix.Mkfifo(at("fifo"), 0o600))
		l.did("mkdir", unix.Mkdir(at("dir"), 0o755))
		l.did("mkdir below", unix.Mkdir(at("dir/dir"), 0o700))
		l.did("symlink", unix.Symlink("file", at("link")))
		for _, name := range []string{"file", "regular", "fifo", "dir", "dir/dir", "link"} {
			l.stat(at(name))
		}
		l.did("plain", unix.Chmod(dir, 0o775))
		l.did("mkdir", unix.Mkdir(at("plain"), 0o755))
		l.stat(at("plain"))
	})
	require.NoError(t, unix.Chmod(m.at(t.Name()), 0o2775))
	w, err := m.client.Create(t.Context(), t.Name()+"/object", client.CreateOptions{})
	require.NoError(t, err)
	_, err = w.Commit(t.Context())
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(m.at(t.Name()+"/object"), &st))
	require.EqualValues(t, 4711, st.Gid, "a file that a client wrote whole")
}

// A name that is too long is ENAMETOOLONG, whether or not the call would make it.
func TestNamesThatAreTooLong(t *testing.T) {
	m := mount(t, startCluster(t, incluster.Options{Seed: 1}), "c1")
	sameAsLocal(t, m, func(_ *testing.T, l *callLog, dir string) {
		for _, n := range []int{moraine.MaxNameLen, moraine.MaxNameLen + 1, 1000, 2000} {
			long, file := filepath.Join(dir, strings.Repeat("n", n)), filepath.Join(dir, "file")
			l.did("create", os.WriteFile(file, nil, 0o644))
			l.did("stat", unix.Stat(long, &unix.Stat_t{}))
			l.did("stat below", unix.Stat(long+"/x", &unix.Stat_t{}))
			l.did("open", func() error { _, err := os.Open(long); return err }())
			l.did("unlink", unix.Unlink(long))
			l.did("rmdir", unix.Rmdir(long))
			l.did("rename from", unix.Rename(long, file))
			l.did("link to", unix.Link(file, long))
			l.did("rename to", unix.Rename(file, long))
			l.did("mkdir", unix.Mkdir(long, 0o755))
			l.did("symlink", unix.Symlink("x", long))
			l.did("mkfifo", unix.Mkfifo(long, 0o644))
			l.did("chmod", unix.Chmod(long, 0o600))
			l.did("unlink", unix.Unlink(long))
		}
	})
}
