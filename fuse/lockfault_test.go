package fuse_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestLocksOutliveTheLeader: a lock stays, and a waiter goes on to wait, when the metadata server is
// killed and comes back.
func TestLocksOutliveTheLeader(t *testing.T) {
	c, m := twoMounts(t, 8)
	a, b, other := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file")), startLocker(t, m[1].at("file"))
	require.Equal(t, done, a.try(write, 0, 10))
	require.Equal(t, done, b.try(write, 20, 10))
	b.wait(write, 0, 10)
	leader := c.Leader()
	c.Kill(leader)
	require.NoError(t, c.Restart(leader))
	require.NoError(t, c.WaitReady(t.Context()))
	require.Equal(t, again, other.try(read, 0, 1))
	require.Equal(t, again, a.try(read, 20, 1))
	require.Equal(t, done, a.try(unlocked, 0, 0))
	require.Equal(t, done, b.answer())
	require.Equal(t, again, a.try(read, 0, 1))
}

// counting increments the number in a SQLite database with a rollback journal, in a transaction of
// its own each time.
const counting = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=600, isolation_level=None)
assert db.execute("pragma journal_mode").fetchone()[0] == "delete"
for i in range(int(sys.argv[2])):
    db.execute("begin immediate")
    n, = db.execute("select n from counter").fetchone()
    db.execute("update counter set n = ?", (n + 1,))
    db.execute("commit")
`

// TestSQLiteOnTwoMounts: two mounts, with two processes each, increment one number of a database.
// No increment is lost.
func TestSQLiteOnTwoMounts(t *testing.T) {
	requireTools(t, "python3")
	_, m := twoMounts(t, 9)
	shell(t, `python3 -c '
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("create table counter (n)")
db.execute("insert into counter values (0)")
db.commit()' "$1"`, m[0].at("db"))
	const each = 15
	script := m[0].dir + "-count.py"
	require.NoError(t, os.WriteFile(script, []byte(counting), 0o644))
	results := make(chan error, 4)
	for i := range cap(results) {
		go func() {
			out, err := tryShell(`python3 "$1" "$2" "$3"`, script, m[i%2].at("db"), fmt.Sprint(each))
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			results <- err
		}()
	}
	for range cap(results) {
		require.NoError(t, <-results)
	}
	got := shell(t, `python3 -c 'import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute("select n from counter").fetchone())' "$1"`, m[1].at("db"))
	require.Equal(t, fmt.Sprintln(cap(results)*each), got)
}

// TestAKilledHolderFreesItsLock: the locks of a process end with it, and what waited continues.
func TestAKilledHolderFreesItsLock(t *testing.T) {
	_, m := twoMounts(t, 10)
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	a.must(done, fmt.Sprint("flock ", unix.LOCK_EX))
	require.Equal(t, done, a.try(write, 0, 0))
	b.wait(write, 0, 0)
	a.kill()
	require.Equal(t, done, b.answer())
	b.must(done, fmt.Sprint("flock ", unix.LOCK_EX))
}

// TestAnUnlockWaitsForItsCommit: while what was written under a lock is not committed, nobody else
// gets the lock.
func TestAnUnlockWaitsForItsCommit(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 11})
	servers := &gate{}
	m := [2]*mounted{mount(t, c, "c1", mountOptions{over: servers.over}), mount(t, c, "c2")}
	require.NoError(t, os.WriteFile(m[0].at("file"), []byte("old"), 0o644))
	a, b := startLocker(t, m[0].at("file")), startLocker(t, m[1].at("file"))
	for _, end := range []string{fmt.Sprintf("fcntl %d %d 0 0", unix.F_SETLK, unlocked), "close"} {
		if end == "close" {
			a.must(done, "close") // a later close of another descriptor would end the locks
			a.must(done, "open "+m[0].at("file"))
		}
		require.Equal(t, done, a.try(write, 0, 0))
		content := "by-" + end[:5]
		a.must(done, "write "+content)
		servers.hold("commit", 0)
		a.send(end)
		require.Eventually(t, func() bool { return servers.count() > 0 }, lockWait, time.Millisecond)
		require.Equal(t, again, b.try(write, 0, 0))
		servers.open()
		require.Equal(t, done, a.answer())
		require.Equal(t, done, b.try(write, 0, 0))
		b.must(strconv.Quote(content), "read")
		require.Equal(t, done, b.try(unlocked, 0, 0))
	}
}
