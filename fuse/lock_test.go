package fuse_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Locks of fcntl belong to a process, so each owner of these tests is a process: a locker.

// lockWait bounds how long a test waits for what another process does.
const lockWait = 90 * time.Second

// lockFiles answers each line of its input with an errno: `open FILE` opens a file, the others act
// on it. A wait for a lock runs until it ends, so the next line is read after it.
func lockFiles([]string) error {
	var f *os.File
	defer func() {
		if f != nil {
			_ = f.Close()
		}
	}()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		var err error
		switch words[0] {
		case "open":
			f, err = os.OpenFile(words[1], os.O_RDWR|os.O_CREATE, 0o644)
		case "again": // opens the file once more, and closes that
			var g *os.File
			if g, err = os.OpenFile(words[1], os.O_RDWR, 0); err == nil {
				err = g.Close()
			}
		case "close":
			err = f.Close()
		case "flock":
			n, _ := strconv.Atoi(words[1])
			err = unix.Flock(int(f.Fd()), n)
		case "fcntl": // command, type, start, length
			var cmd, typ, start, length int
			if _, err = fmt.Sscan(strings.Join(words[1:], " "), &cmd, &typ, &start, &length); err == nil {
				l := unix.Flock_t{Type: int16(typ), Start: int64(start), Len: int64(length)}
				err = unix.FcntlFlock(f.Fd(), cmd, &l)
				if err == nil && cmd == unix.F_GETLK {
					fmt.Println("lock", l.Type, l.Start, l.Len, l.Pid)
					continue
				}
			}
		case "write":
			_, err = f.WriteAt([]byte(words[1]), 0)
		case "fsync":
			err = f.Sync()
		case "truncate":
			err = f.Truncate(3)
		case "read":
			b := make([]byte, 100)
			n, rerr := f.ReadAt(b, 0)
			if rerr == nil || errors.Is(rerr, io.EOF) {
				fmt.Printf("%q\n", b[:n])
				continue
			}
			err = rerr
		}
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Println("errno", int(errno))
	}
	return lines.Err()
}

// locker is a process that locks a file.
type locker struct {
	t       *testing.T
	in      io.WriteCloser
	answers chan string
	kill    func()
}

// startLocker starts a process and opens a file in it.
func startLocker(t *testing.T, path string) *locker {
	t.Helper()
	cmd := childCommand("lock-files")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	l := &locker{t: t, in: in, answers: make(chan string, 1), kill: func() { _ = cmd.Process.Kill() }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(l.answers)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.answers <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		l.kill()
		for range l.answers {
		}
		<-ended
		_ = cmd.Wait()
	})
	require.Equal(t, "errno 0", l.do("open "+path))
	return l
}

// send sends a line; answer returns the answer to it.
func (l *locker) send(line string) {
	l.t.Helper()
	_, err := fmt.Fprintln(l.in, line)
	require.NoError(l.t, err)
}

func (l *locker) answer() string {
	l.t.Helper()
	select {
	case a := <-l.answers:
		return a
	case <-time.After(lockWait):
		require.FailNow(l.t, "the process does not answer")
		return ""
	}
}

func (l *locker) do(line string) string {
	l.t.Helper()
	l.send(line)
	return l.answer()
}

// try locks a range without a wait, and returns the errno.
func (l *locker) try(typ, start, length int) string {
	l.t.Helper()
	return l.do(fmt.Sprintf("fcntl %d %d %d %d", unix.F_SETLK, typ, start, length))
}

func (l *locker) must(answer, line string) {
	l.t.Helper()
	require.Equal(l.t, answer, l.do(line), line)
}

// wait begins to wait for a lock; answer returns its result.
func (l *locker) wait(typ, start, length int) {
	l.send(fmt.Sprintf("fcntl %d %d %d %d", unix.F_SETLKW, typ, start, length))
}

const (
	done     = "errno 0"
	read     = unix.F_RDLCK
	write    = unix.F_WRLCK
	unlocked = unix.F_UNLCK
)

var again = fmt.Sprint("errno ", int(unix.EAGAIN))

// twoMounts starts a cluster with a file on two mounts.
func twoMounts(t *testing.T, seed uint64) (c *incluster.Cluster, mounts [2]*mounted) {
	t.Helper()
	c = startCluster(t, incluster.Options{Seed: seed})
	mounts = [2]*mounted{mount(t, c, "c1"), mount(t, c, "c2")}
	require.NoError(t, os.WriteFile(mounts[0].at("file"), []byte("old content"), 0o644))
	return c, mounts
}

// TestFcntlLocksExcludeEachOtherOnAllMounts: the locks of two processes of one mount, and of another
// mount, exclude each other by range and kind.
func TestFcntlLocksExcludeEachOtherOnAllMounts(t *testing.T) {
	_, m := twoMounts(t, 1)
	a, b, c := startLocker(t, m[0].at("file")), startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	require.Equal(t, done, a.try(write, 0, 10))
	for _, other := range []*locker{b, c} {
		require.Equal(t, again, other.try(read, 9, 1))
		require.Equal(t, done, other.try(read, 10, 5), "readers share")
		require.Contains(t, other.do(fmt.Sprintf("fcntl %d %d 0 100", unix.F_GETLK, read)), fmt.Sprintf("lock %d 0 10", write))
	}
	require.Equal(t, again, a.try(write, 12, 1))
	require.Equal(t, done, a.try(read, 0, 0), "an owner replaces its own lock")
	require.Equal(t, done, b.try(read, 0, 0))
	require.Equal(t, again, c.try(write, 3, 1))
	require.Equal(t, done, a.try(unlocked, 0, 0))
	require.Equal(t, done, b.try(unlocked, 0, 0))
	require.Equal(t, done, c.try(write, 0, 0))
	require.Contains(t, a.do(fmt.Sprintf("fcntl %d %d 0 1", unix.F_GETLK, read)), fmt.Sprintf("lock %d 0 0 0", write), "a process of another mount has no number here")
	c.must(done, "again "+m[1].at("file")) // a close of any descriptor ends the locks
	require.Equal(t, done, a.try(write, 0, 0))
	a.kill()
	require.Eventually(t, func() bool { return c.try(write, 0, 0) == done }, lockWait, 10*time.Millisecond)
}

// TestFlockAndOpenFileLocksBelongToTheOpenFile: they exclude other open files, on any mount, and end
// with the last descriptor. flock and fcntl ignore each other.
func TestFlockAndOpenFileLocksBelongToTheOpenFile(t *testing.T) {
	_, m := twoMounts(t, 2)
	open := func(m *mounted) *os.File {
		f, err := os.OpenFile(m.at("file"), os.O_RDWR, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	flock := func(f *os.File, how int) error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) }
	ofd := func(f *os.File, typ int16) error {
		return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: typ, Len: 10})
	}
	a, b, c := open(m[0]), open(m[0]), open(m[1])
	require.NoError(t, flock(a, unix.LOCK_EX))
	require.NoError(t, ofd(b, unix.F_WRLCK), "flock and fcntl ignore each other")
	for _, f := range []*os.File{b, c} {
		require.ErrorIs(t, flock(f, unix.LOCK_SH), unix.EWOULDBLOCK)
	}
	for _, f := range []*os.File{a, c} {
		require.ErrorIs(t, ofd(f, unix.F_RDLCK), unix.EAGAIN)
	}
	require.NoError(t, flock(a, unix.LOCK_SH))
	require.NoError(t, flock(c, unix.LOCK_SH))
	require.ErrorIs(t, flock(c, unix.LOCK_EX), unix.EWOULDBLOCK)
	dup, err := unix.Dup(int(a.Fd()))
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.ErrorIs(t, flock(c, unix.LOCK_EX), unix.EWOULDBLOCK, "another descriptor has the open file")
	require.NoError(t, unix.Close(dup))
	require.NoError(t, b.Close())
	require.Eventually(t, func() bool { return flock(c, unix.LOCK_EX) == nil }, lockWait, 10*time.Millisecond)
	require.Eventually(t, func() bool { return ofd(c, unix.F_WRLCK) == nil }, lockWait, 10*time.Millisecond)
}

// TestALockShowsWhatTheHolderBeforeWrote: an unlock commits, and a lock refreshes.
func TestALockShowsWhatTheHolderBeforeWrote(t *testing.T) {
	_, m := twoMounts(t, 3)
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	for i := range 20 {
		w, r := a, b
		if i%2 == 1 {
			w, r = b, a
		}
		require.Equal(t, done, w.try(write, 0, 0))
		r.wait(read, 0, 0)
		content := fmt.Sprintf("content-%03d", i)
		w.must(done, "write "+content)
		require.Equal(t, done, w.try(unlocked, 0, 0))
		require.Equal(t, done, r.answer())
		r.must(strconv.Quote(content), "read")
		require.Equal(t, done, r.try(unlocked, 0, 0))
	}
}

// TestOneOfTwoOwnersInADeadlockFails: each has what the other waits for, on two mounts.
func TestOneOfTwoOwnersInADeadlockFails(t *testing.T) {
	_, m := twoMounts(t, 4)
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	require.Equal(t, done, a.try(write, 0, 1))
	require.Equal(t, done, b.try(write, 1, 1))
	a.wait(write, 1, 1)
	b.wait(write, 0, 1)
	deadlock := fmt.Sprint("errno ", int(unix.EDEADLK))
	loser, winner := a, b
	select {
	case got := <-a.answers:
		require.Equal(t, deadlock, got)
	case got := <-b.answers:
		require.Equal(t, deadlock, got)
		loser, winner = b, a
	case <-time.After(lockWait):
		t.Fatal("nobody noticed the deadlock")
	}
	require.Equal(t, done, loser.try(unlocked, 0, 0))
	require.Equal(t, done, winner.answer())
}

// TestAWaitForALockCanBeInterrupted: the process leaves, and what it waited for does not come later.
func TestAWaitForALockCanBeInterrupted(t *testing.T) {
	_, m := twoMounts(t, 5)
	a, b, c := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file")), startLocker(t, m[1].at("file"))
	require.Equal(t, done, a.try(write, 0, 0))
	b.wait(write, 0, 0)
	b.kill()
	for range b.answers { // until the process has ended
	}
	require.Equal(t, done, a.try(unlocked, 0, 0))
	require.Eventually(t, func() bool { return c.try(write, 0, 0) == done }, lockWait, 10*time.Millisecond)
}

// TestALostSessionLosesItsLocks: another mount gets the lock. Until the owner unlocks, every change
// of the file through the first mount fails, also after a new lock.
func TestALostSessionLosesItsLocks(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 6})
	m := [2]*mounted{mount(t, c, "c1"), mount(t, c, "c2")}
	require.NoError(t, os.WriteFile(m[0].at("file"), []byte("old content"), 0o644))
	a, b, other := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file")), startLocker(t, m[0].at("other"))
	require.Equal(t, done, a.try(write, 0, 0))
	a.must(done, "write under-lock")
	b.wait(write, 0, 0)
	endSession(t, m[0].client.Client)
	require.Equal(t, done, b.answer(), "the session ended, and its locks with it")
	b.must(done, "write mine")
	b.must(done, "fsync")
	broken := fmt.Sprint("errno ", int(unix.EIO))
	require.Eventually(t, func() bool { return a.do("write stale") == broken }, lockWait, 10*time.Millisecond)
	for _, what := range []string{"write stale", "fsync", "truncate"} {
		a.must(broken, what)
	}
	require.Equal(t, broken, a.try(read, 100, 1), "a new lock does not hide the lost one")
	other.must(done, "write fine")
	other.must(done, "fsync")
	b.must(`"minecontent"`, "read")
	require.Equal(t, done, a.try(unlocked, 0, 0))
	require.Equal(t, again, a.try(write, 0, 0))
	require.Equal(t, done, b.try(unlocked, 0, 0))
	require.Equal(t, done, a.try(write, 0, 0))
	a.must(`"minecontent"`, "read")
	a.must(done, "write yours")
	a.must(done, "fsync")
}

// TestLocksHaveABound: the error is ENOLCK, and what there is stays.
func TestLocksHaveABound(t *testing.T) {
	_, m := twoMounts(t, 7)
	a := startLocker(t, m[0].at("file"))
	var got string
	n := 0
	for ; n < 1100; n++ {
		if got = a.try(write, 2*n, 1); got != done {
			break
		}
	}
	require.Equal(t, fmt.Sprint("errno ", int(unix.ENOLCK)), got)
	require.Equal(t, 1024, n)
	require.Equal(t, done, a.try(write, 0, 0), "fewer locks, for all of it")
}

// endSession ends a client's session at the service. The client learns of it later.
func endSession(t *testing.T, cl *client.Client) {
	t.Helper()
	_, err := rawclient.Of(cl).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})
	require.NoError(t, err)
}
