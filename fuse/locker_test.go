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

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Locks of fcntl belong to a process, so each owner of these tests is a process: a locker.

// lockWait bounds how long a test waits for what another process does.
const lockWait = 90 * time.Second

// lockFiles answers each line of its input with an errno: `open FILE` opens a file, the others act
// on it. A wait for a lock runs until it ends, so the next line is read after it.
func lockFiles([]string) error {
	var f, other *os.File
	defer func() {
		for _, g := range []*os.File{f, other} {
			if g != nil {
				_ = g.Close()
			}
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
		case "reader": // opens the file once more, for reading; swap makes it the one to act on
			other, err = os.Open(words[1])
		case "swap":
			f, other = other, f
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
