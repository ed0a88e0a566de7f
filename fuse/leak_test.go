package fuse_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// leakRow is one call of a program, and what it comes to. It ends in three ways: as the
// program wants, with an error of the service, and by a signal.
type leakRow struct {
	name string
	// ops are the operations of the mount that it takes.
	ops []string
	// asks is the kind of requests that fail or are held; "": the call asks nobody, and
	// only succeeds. The first skip of them go through.
	asks string
	skip int
	// noError leaves out the outcome error: clients try the servers again for long.
	// noInterrupt leaves out interrupts: the kernel waits for a page whatever comes.
	noError, noInterrupt bool
	// brief makes the call at a mount that tries the servers again for a short time only.
	brief bool
	// want is what a call that is not disturbed returns.
	want error
	prep func(e *leakEnv, path string) leakCall
}

// leakCall is one call that was prepared. do makes one system call. undo removes what is
// left, whatever became of do.
type leakCall struct {
	do   func() error
	undo func()
}

type leakEnv struct {
	t *testing.T
	m *mounted
	// servers stands between the mount and the cluster.
	servers *gate
	// other is a second mount of the cluster, at which the gate does not stand.
	other *mounted
	// mapper maps files in another process.
	mapper *mapper
	file   string // has content and attributes
	link   string
	dir    string
	buf    []byte
}

// open returns a file of its own, open, and what closes and removes it.
func (e *leakEnv) open(path string, flags int) (fd int, undo func()) {
	fd, err := unix.Open(path, flags|unix.O_CREAT|unix.O_RDWR, 0o644)
	require.NoError(e.t, err)
	return fd, func() {
		_ = unix.Close(fd)
		_ = unix.Unlink(path)
	}
}

// shared opens what is there already.
func (e *leakEnv) shared(path string) (fd int, undo func()) {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	for end := time.Now().Add(time.Minute); errors.Is(err, unix.ETIMEDOUT) && time.Now().Before(end); {
		fd, err = unix.Open(path, unix.O_RDONLY, 0) // at the mount of a short patience, on a slow machine
	}
	require.NoError(e.t, err)
	return fd, func() { _ = unix.Close(fd) }
}

func (e *leakEnv) touch(path string) {
	require.NoError(e.t, os.WriteFile(path, nil, 0o644))
}

// The table has each operation that the mount implements, so that a new one cannot be
// forgotten.
func TestTheLeakTableHasEveryOperation(t *testing.T) {
	ops := fuse.Operations()
	require.Greater(t, len(ops), 25, ops)
	for _, op := range ops {
		if op == "String" { // no request
			continue
		}
		if !slices.ContainsFunc(leakRows, func(r leakRow) bool { return slices.Contains(r.ops, op) }) {
			t.Errorf("leakRows has no row for %s", op)
		}
	}
}

// briefPatience is that of the mount at which reads fail: a read takes as long.
const briefPatience = 20 * time.Millisecond

// newLeakEnv mounts a cluster, and makes what the calls of the table work with. brief is
// the same files at a mount of a short patience.
func newLeakEnv(t *testing.T) (e, brief *leakEnv) {
	c := startCluster(t, incluster.Options{Seed: 1})
	at := func(node string, patience time.Duration) *leakEnv {
		servers := &gate{}
		m := mount(t, c, node, mountOptions{over: servers.over,
			client: client.Config{CacheEntries: -1, GetTimeout: time.Hour, HedgeFloor: time.Hour, AttemptTimeout: time.Hour, Patience: patience},
			mount:  fuse.Config{ReadBytes: 2 << 20, Patience: time.Minute}})
		return &leakEnv{t: t, m: m, servers: servers, file: m.at("file"), link: m.at("link"), dir: m.at("dir"), buf: make([]byte, 128<<10)}
	}
	e, brief = at("c1", time.Hour), at("c2", briefPatience)
	e.other = mount(t, c, "c3")
	e.startMapper()
	require.NoError(t, os.WriteFile(e.file, randomBytes(seed(t), leakContent), 0o644))
	require.NoError(t, unix.Setxattr(e.file, "user.some", []byte("value"), 0))
	require.NoError(t, unix.Setxattr(e.file, "user.none", nil, 0))
	require.NoError(t, os.Symlink("somewhere", e.link))
	require.NoError(t, os.Mkdir(e.dir, 0o755))
	for i := range 20 {
		e.touch(filepath.Join(e.dir, fmt.Sprint(i)))
	}
	return e, brief
}

// outcomes are the ways in which the calls of a row end.
func (row *leakRow) outcomes() []string {
	outcomes := []string{"success"}
	if row.asks != "" && !row.noInterrupt {
		outcomes = append(outcomes, "interrupt")
	}
	if row.asks != "" && !row.noError {
		outcomes = append(outcomes, "error")
	}
	return outcomes
}

// No operation of a mount keeps memory, entries of its tables, descriptors or goroutines,
// however it ends.
func TestNoOperationKeepsAnything(t *testing.T) {
	all, interrupts := testseed.Runs(t, 200, 10_000), testseed.Runs(t, 100, 10_000)
	normal, brief := newLeakEnv(t)
	for _, row := range leakRows {
		t.Run(row.name, func(t *testing.T) {
			e := normal
			if row.brief {
				e = brief
			}
			e.t = t
			for _, outcome := range row.outcomes() {
				times := all
				if outcome == "interrupt" || row.brief {
					times = interrupts // each takes milliseconds
				}
				e.run(&row, outcome, 1) // what is made once is made
				before, began := e.kept(), time.Now()
				e.run(&row, outcome, times)
				e.requireKept(before, outcome, times)
				t.Logf("%d calls that end by %s took %v", times, outcome, time.Since(began).Round(time.Millisecond))
			}
		})
	}
}

func (e *leakEnv) run(row *leakRow, outcome string, times int) {
	e.t.Helper()
	for i := range times {
		e.runOnce(row, outcome, e.m.at(fmt.Sprintf("%s %s %d", row.name, outcome, i)))
	}
}

func (e *leakEnv) runOnce(row *leakRow, outcome, path string) {
	e.t.Helper()
	call := row.prep(e, path)
	defer call.undo() // a file that stays open would keep the test from its end
	defer e.m.fsys.InterruptAfter(0)
	defer e.servers.open()
	switch outcome {
	case "success":
		err := call.do()
		if errors.Is(err, unix.EINTR) {
			return // the runtime sends signals too
		}
		if row.brief && errors.Is(err, unix.ETIMEDOUT) {
			return // a machine that is slow takes longer than so short a patience
		}
		require.True(e.t, errors.Is(err, row.want), "%s: %v", row.name, err)
	case "error":
		e.servers.failing(row.asks, row.skip)
		err := call.do()
		require.NotZero(e.t, e.servers.open(), "%s asked no %s", row.name, row.asks)
		require.Error(e.t, err)
	case "interrupt":
		e.servers.hold(row.asks, row.skip)
		e.m.fsys.InterruptAfter(time.Millisecond)
		err := interrupted(call.do, func() bool { return e.servers.count() > 0 })
		require.NotZero(e.t, e.servers.open(), "%s asked no %s", row.name, row.asks)
		require.Error(e.t, err)
	}
}

// interrupted makes a system call in a thread that gets signals until it returns, from
// when it is under way.
func interrupted(do func() error, underWay func() bool) error {
	thread, ended := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		ended <- do()
	}()
	id := <-thread
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(2 * time.Millisecond):
			if !underWay() {
				continue
			}
			_ = unix.Tgkill(os.Getpid(), id, syscall.SIGURG) // the runtime takes it for a preemption
		}
	}
}

// kept is what calls could leave behind.
type kept struct {
	ReadMemory, ClientMemory int64
	Files, Inodes, Dirs      int
	Descriptors, Goroutines  int
}

func (e *leakEnv) kept() kept {
	k := kept{ReadMemory: e.m.fsys.ReadMemory(), ClientMemory: e.m.client.MemoryInUse(), Goroutines: runtime.NumGoroutine()}
	k.Files, k.Inodes, k.Dirs = e.m.fsys.Entries()
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		k.Descriptors = len(names)
	}
	return k
}

// slack is how many goroutines and descriptors may come by themselves, and stay.
const slack = 3

// requireKept waits until nothing is kept that was not before. The kernel releases files
// after their last close has returned.
func (e *leakEnv) requireKept(before kept, outcome string, times int) {
	e.t.Helper()
	var now kept
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		now = e.kept()
		if now.ReadMemory == 0 && now.ClientMemory == 0 && now.Files == 0 && now.Inodes == 0 && now.Dirs == 0 &&
			now.Descriptors <= before.Descriptors+slack && now.Goroutines <= before.Goroutines+slack {
			return
		}
	}
	e.t.Fatalf("%d calls that ended by %s keep something: before %+v, after %+v", times, outcome, before, now)
}
