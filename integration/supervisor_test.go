package integration_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The programs of these tests are goroutines of this process: their calls wait while there is no
// daemon, each in a thread of its own.

// daemon returns the process that serves the mount, a child of the supervisor. It waits for one
// other than the given one.
func (m *mountProc) daemon(t *testing.T, not int) int {
	t.Helper()
	for range 6000 {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.pid))
		require.NoError(t, err)
		for _, f := range files {
			text, _ := os.ReadFile(f) // a thread may end meanwhile
			for _, field := range strings.Fields(string(text)) {
				pid, err := strconv.Atoi(field)
				require.NoError(t, err)
				if pid != not {
					return pid
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the supervisor has no daemon")
	return 0
}

// crash kills the daemon with SIGKILL, and returns when another one serves.
func (m *mountProc) crash(t *testing.T) {
	t.Helper()
	old := m.killDaemon(t, 0)
	m.daemon(t, old)
	require.NoError(t, m.answers())
}

// answers returns when a daemon serves, or the mount has ended.
func (m *mountProc) answers() error { // the kernel may answer stat by itself
	var st unix.Statfs_t
	return ignoringEINTR(func() error { return unix.Statfs(m.dir, &st) })
}

func ignoringEINTR(call func() error) (err error) {
	for err = call(); errors.Is(err, unix.EINTR); err = call() {
	}
	return err
}

// killDaemon kills the daemon, other than the given one, with SIGKILL, and returns when it is dead.
func (m *mountProc) killDaemon(t *testing.T, not int) (pid int) {
	t.Helper()
	pid = m.daemon(t, not)
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	require.NoError(t, ignoringEINTR(func() error {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		return err
	}))
	return pid
}

// supervised starts a small cluster with a mount.
func supervised(t *testing.T, args ...string) (*devcluster.Cluster, *mountProc) {
	t.Helper()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	return c, mountCluster(t, c, args...)
}

// TestOpenFilesSurviveACrashOfTheDaemon: the daemon of a mount is killed. Open files, directories and
// a file without a name stay open, locks stay, and later calls work.
func TestOpenFilesSurviveACrashOfTheDaemon(t *testing.T) {
	t.Parallel()
	c, m := supervised(t)
	data := randomBytes(random(seed(t)), 3<<20)
	at := func(name string) string { return filepath.Join(m.dir, name) }
	require.NoError(t, os.WriteFile(at("read"), data, 0o644))
	require.NoError(t, os.Mkdir(at("dir"), 0o755))
	const entries = 3000
	for i := range entries {
		require.NoError(t, os.WriteFile(at(fmt.Sprintf("dir/%05d", i)), nil, 0o644))
	}
	read, err := os.Open(at("read"))
	require.NoError(t, err)
	defer read.Close()
	half := make([]byte, len(data)/2)
	_, err = io.ReadFull(read, half)
	require.NoError(t, err)
	unlinked, err := os.Create(at("unlinked"))
	require.NoError(t, err)
	defer unlinked.Close()
	_, err = unlinked.Write(data)
	require.NoError(t, err)
	require.NoError(t, unlinked.Sync())
	require.NoError(t, os.Remove(at("unlinked")))
	locked, err := os.Create(at("locked"))
	require.NoError(t, err)
	defer locked.Close()
	require.NoError(t, unix.Flock(int(locked.Fd()), unix.LOCK_EX))
	require.NoError(t, unix.FcntlFlock(locked.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 5, Len: 10}))
	dir, err := os.Open(at("dir"))
	require.NoError(t, err)
	defer dir.Close()
	names, err := dir.Readdirnames(entries / 3)
	require.NoError(t, err)

	for range 2 {
		m.crash(t)
	}

	rest, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(data), sha256.Sum256(append(half, rest...)))
	more, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	names = append(names, more...)
	seen := map[string]bool{}
	for _, n := range names {
		seen[n] = true
	}
	require.Len(t, seen, entries)
	require.Len(t, names, entries)
	got := make([]byte, len(data))
	_, err = unlinked.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, data, got)
	_, err = unlinked.WriteAt([]byte("more"), 0)
	require.NoError(t, err)
	require.NoError(t, unlinked.Sync())

	other := connect(t, c, client.Config{})
	attr, err := other.Stat(t.Context(), "/locked")
	require.NoError(t, err)
	for _, l := range []client.FileLock{{Owner: 1, Flock: true, End: client.LockEnd, Write: true}, {Owner: 1, End: client.LockEnd}} {
		_, _, found, err := other.Inodes().FindLock(t.Context(), attr.Inode(), l)
		require.NoError(t, err)
		require.True(t, found, "flock %v", l.Flock)
	}
	_, err = locked.Write([]byte("under the lock"))
	require.NoError(t, err)
	require.NoError(t, locked.Close())
	for _, l := range []client.FileLock{{Owner: 1, Flock: true, End: client.LockEnd, Write: true}, {Owner: 1, End: client.LockEnd}} {
		require.NoError(t, other.Inodes().Lock(t.Context(), attr.Inode(), l, true))
	}
	require.NoError(t, read.Close())
	require.NoError(t, unlinked.Close())
	require.NoError(t, dir.Close())
	out, err := m.moraine("stats", m.dir, "--count", "1", "--interval", "10ms", "--json")
	require.NoError(t, err, out)
	out, err = m.moraine("info", at("read"))
	require.NoError(t, err, out)
	m.umount(t)
}

// TestLostWritesAreReportedAfterACrash: the daemon is killed with written bytes in its memory. The next
// fsync of the file fails, once. Bytes that were synced before are there, and other files have no error.
func TestLostWritesAreReportedAfterACrash(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	data := randomBytes(random(seed(t)), 100_000)
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(m.dir, name))
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		_, err = f.Write(data)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		return f
	}
	synced, lost, closed := open("synced"), open("lost"), open("closed")
	for _, f := range []*os.File{lost, closed} {
		_, err := f.Write(data)
		require.NoError(t, err)
	}
	m.crash(t)
	require.NoError(t, exec.Command("/bin/true").Run()) // its copies of the descriptors are closed
	require.NoError(t, synced.Sync())
	require.ErrorIs(t, lost.Sync(), syscall.EIO)
	_, err := lost.WriteAt(data, int64(len(data)))
	require.NoError(t, err)
	require.NoError(t, lost.Sync())
	require.ErrorIs(t, closed.Close(), syscall.EIO)
	m.crash(t)
	require.NoError(t, lost.Sync())
	require.NoError(t, lost.Close())
	got, err := os.ReadFile(filepath.Join(m.dir, "lost"))
	require.NoError(t, err)
	require.Equal(t, append(append([]byte{}, data...), data...), got)
	got, err = os.ReadFile(filepath.Join(m.dir, "closed"))
	require.NoError(t, err)
	require.Equal(t, data, got[:len(data)])
	require.NoError(t, synced.Close())
	m.umount(t)
}
