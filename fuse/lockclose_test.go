package fuse_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// gatedMounts is twoMounts with a gate between the first mount and the servers.
func gatedMounts(t *testing.T, seed uint64, cfg fuse.Config) (servers *gate, mounts [2]*mounted) {
	t.Helper()
	c := startCluster(t, incluster.Options{Seed: seed})
	servers = &gate{}
	mounts = [2]*mounted{mount(t, c, "c1", mountOptions{over: servers.over, mount: cfg}), mount(t, c, "c2")}
	t.Cleanup(func() { servers.open() })
	require.NoError(t, os.WriteFile(mounts[0].at("file"), []byte("old"), 0o644))
	return servers, mounts
}

// TestAReadersUnlockWaitsForTheCommit: a process unlocks through a file that it opened for reading. What
// it wrote through another open file is committed first.
func TestAReadersUnlockWaitsForTheCommit(t *testing.T) {
	servers, m := gatedMounts(t, 12, fuse.Config{})
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	a.must(done, "reader "+m[0].at("file"))
	require.Equal(t, done, a.try(write, 0, 0))
	a.must(done, "write new")
	a.must(done, "swap")
	servers.hold("commit", 0)
	a.send(fmt.Sprintf("fcntl %d %d 0 0", unix.F_SETLK, unlocked))
	require.Eventually(t, func() bool { return servers.count() > 0 }, lockWait, time.Millisecond)
	require.Equal(t, again, b.try(write, 0, 0))
	servers.open()
	require.Equal(t, done, a.answer())
	require.Equal(t, done, b.try(write, 0, 0))
	b.must(`"new"`, "read")
}

// TestAReadersUnlockDoesNotFreeLostBytes: the session ended, and another mount wrote under the lock. What
// the process wrote before is lost, also when it unlocks through a file that it opened for reading.
func TestAReadersUnlockDoesNotFreeLostBytes(t *testing.T) {
	servers, m := gatedMounts(t, 13, fuse.Config{})
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	a.must(done, "reader "+m[0].at("file"))
	require.Equal(t, done, a.try(write, 0, 0))
	servers.hold("commit", 0)
	a.must(done, "write stale")
	endSession(t, m[0].client.Client)
	b.wait(write, 0, 0)
	require.Equal(t, done, b.answer())
	b.must(done, "write mine")
	b.must(done, "fsync")
	servers.open()
	a.must(done, "swap")
	require.Equal(t, done, a.try(unlocked, 0, 0))
	a.must(done, "swap")
	a.must(fmt.Sprint("errno ", int(unix.EIO)), "fsync")
	b.must(`"mine"`, "read")
}

// TestALateCloseTakesNoLaterLockAway: a close returns before its commit, and the process locks the file
// again. It gets the lock when the close has given back the old one, and keeps it.
func TestALateCloseTakesNoLaterLockAway(t *testing.T) {
	servers, m := gatedMounts(t, 14, fuse.Config{CallPatience: 5 * time.Second})
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	require.Equal(t, done, a.try(write, 0, 0))
	a.must(done, "write new")
	servers.hold("commit", 0)
	late := fmt.Sprint("errno ", int(unix.ETIMEDOUT))
	a.must(late, "close")
	require.Equal(t, again, b.try(write, 0, 0), "what was written is not committed")
	a.must(done, "open "+m[0].at("file"))
	require.Equal(t, late, a.try(write, 0, 0), "the close comes first")
	require.Equal(t, again, b.try(write, 0, 0))
	servers.open()
	require.Eventually(t, func() bool { return a.try(write, 0, 0) == done }, lockWait, time.Millisecond)
	a.must(done, "fsync")
	for range 100 {
		require.Equal(t, again, b.try(write, 0, 0))
	}
	a.must(`"new"`, "read")
	require.Equal(t, done, a.try(unlocked, 0, 0))
	require.Equal(t, done, b.try(write, 0, 0))
	b.must(`"new"`, "read")
}

// TestALockStaysWhenTheContentIsNotRead: the owner keeps what it had, and has what it wanted. A read
// then looks for the newest content.
func TestALockStaysWhenTheContentIsNotRead(t *testing.T) {
	servers, m := gatedMounts(t, 15, fuse.Config{})
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	require.Equal(t, done, a.try(read, 0, 0))
	b.must(done, "write new")
	b.must(done, "fsync")
	servers.failing("getattr", 0)
	require.Equal(t, done, a.try(write, 0, 0))
	require.Positive(t, servers.open(), "the content was requested")
	require.Equal(t, again, b.try(read, 0, 1))
	a.must(`"new"`, "read")
}
