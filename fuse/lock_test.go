package fuse_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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
