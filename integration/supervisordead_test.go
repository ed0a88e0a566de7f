package integration_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// waitsInKernel returns a thread of a process that has slept for some time and cannot be woken; "" if
// none does.
func waitsInKernel(pid int) string {
	seen := map[string]int{}
	const looks = 10
	for range looks {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, f := range files {
			text, _ := os.ReadFile(f) // a thread may end meanwhile
			if strings.Contains(string(text), ") D ") {
				seen[filepath.Base(filepath.Dir(f))]++
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	for thread, n := range seen {
		if n == looks {
			return thread
		}
	}
	return ""
}

// rereader reads a file whose pages nobody watches, and has the kernel forget what it read. So the
// daemon drops the pages of each read, while other reads of the same pages are under way.
type rereader struct {
	paged, writer *os.File
	stop          atomic.Bool
	reads         atomic.Int64
	running       sync.WaitGroup
	errs          chan error
}

const rereaders = 6

func startRereader(t *testing.T, name string, size int) *rereader {
	t.Helper()
	r := &rereader{errs: make(chan error, rereaders)}
	var err error
	r.paged, err = os.Open(name)
	require.NoError(t, err)
	r.writer, err = os.OpenFile(name, os.O_WRONLY, 0) // ends the watch
	require.NoError(t, err)
	for i := range rereaders {
		r.running.Go(func() {
			rnd := random(uint64(i))
			buf := make([]byte, 256<<10)
			for !r.stop.Load() {
				_ = unix.Fadvise(int(r.paged.Fd()), 0, 0, unix.FADV_DONTNEED)
				if _, err := r.paged.ReadAt(buf, int64(rnd.IntN(size-len(buf)))); err != nil {
					r.errs <- err
					return
				}
				r.reads.Add(1)
			}
		})
	}
	return r
}

// end waits for the reads, and returns their first error.
func (r *rereader) end(t *testing.T) {
	t.Helper()
	r.stop.Store(true)
	r.running.Wait()
	close(r.errs)
	require.NoError(t, <-r.errs)
	require.NoError(t, r.paged.Close())
	require.NoError(t, r.writer.Close())
}

// TestADeadDaemonThatDoesNotEnd: the daemon is killed while one of its threads drops pages, and the
// kernel waits there for a read that the same daemon was to answer. The process does not end before the
// next daemon has answered the read. The mount works on.
func TestADeadDaemonThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	c, m := supervised(t, "--memory", "64MiB") // the daemon asks for most bytes again
	all := func(s syscall.Signal) {
		for _, n := range c.Nodes(devcluster.Chunkserver) {
			require.NoError(t, n.Signal(s))
		}
	}
	t.Cleanup(func() {
		all(syscall.SIGCONT)
		if t.Failed() {
			_ = unix.Unmount(m.dir, unix.MNT_FORCE) // ends what hangs
		}
	})
	data := randomBytes(random(seed(t)), 128<<20)
	name := filepath.Join(m.dir, "file")
	require.NoError(t, os.WriteFile(name, data, 0o644))
	var r *rereader
	daemon, thread := m.daemon(t, 0), ""
	for try := 0; thread == ""; try++ {
		require.Less(t, try, 50, "no thread of the daemon waits for a read")
		r = startRereader(t, name, len(data))
		require.Eventually(t, func() bool { return r.reads.Load() > 50 }, time.Minute, time.Millisecond)
		all(syscall.SIGSTOP)
		if thread = waitsInKernel(daemon); thread == "" {
			all(syscall.SIGCONT)
			r.end(t)
		}
	}
	dead, err := unix.PidfdOpen(daemon, 0)
	require.NoError(t, err)
	defer unix.Close(dead)
	ended := func(patience time.Duration) bool {
		n := 0
		require.NoError(t, ignoringEINTR(func() (err error) {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(dead), Events: unix.POLLIN}}, int(patience.Milliseconds()))
			return err
		}))
		return n > 0
	}
	require.NoError(t, unix.PidfdSendSignal(dead, unix.SIGKILL, nil, 0))
	require.False(t, ended(200*time.Millisecond), "thread %s did not wait for a read", thread)
	all(syscall.SIGCONT)

	answered := make(chan error, 1)
	go func() { answered <- m.answers() }()
	select {
	case err := <-answered:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "the mount hangs")
	}
	m.daemon(t, daemon) // there is another one
	before := r.reads.Load()
	require.Eventually(t, func() bool { return r.reads.Load() > before+50 }, time.Minute, time.Millisecond)
	require.True(t, ended(time.Minute), "thread %s of the dead daemon is left", thread)
	r.end(t)
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(data), sha256.Sum256(got))
	m.umount(t)
}
