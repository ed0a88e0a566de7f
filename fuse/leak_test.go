package fuse_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/leakcheck"
	"github.com/morainefs/moraine/internal/testseed"
)

// leakRow is one call of a program, and its result. It ends in three ways: as the
// program wants, with an error of the service, and by a signal.
type leakRow struct {
	name string
	// ops are the operations of the mount that it uses.
	ops []string
	// asks is the kind of requests that fail or are blocked. With "" the call sends
	// no request, and can only succeed. The first skip of them pass.
	asks string
	skip int
	// noInterrupt leaves out interrupts: the kernel waits for a page whatever comes.
	noInterrupt bool
	// silence has the call interrupted too while the servers do not answer, and the client
	// tries again.
	silence bool
	// want is what an undisturbed call returns.
	want error
	prep func(e *leakEnv, path string) leakCall
}

// leakCall is one prepared call. do makes one system call. undo removes what is
// left, whatever the result of do.
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

// open opens a file of its own, and returns a function that closes and removes it.
func (e *leakEnv) open(path string, flags int) (fd int, undo func()) {
	fd, err := unix.Open(path, flags|unix.O_CREAT|unix.O_RDWR, 0o644)
	require.NoError(e.t, err)
	return fd, func() {
		_ = unix.Close(fd)
		_ = unix.Unlink(path)
	}
}

// shared opens an existing file.
func (e *leakEnv) shared(path string) (fd int, undo func()) {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	require.NoError(e.t, err)
	return fd, func() { _ = unix.Close(fd) }
}

func (e *leakEnv) touch(path string) {
	require.NoError(e.t, os.WriteFile(path, nil, 0o644))
}

// The table has each operation that the mount implements, so that a new one is
// always covered.
func TestTheLeakTableHasEveryOperation(t *testing.T) {
	ops := fuse.Operations()
	require.Greater(t, len(ops), 25, ops)
	for _, op := range ops {
		if op == "String" { // not a request
			continue
		}
		if !slices.ContainsFunc(leakRows, func(r leakRow) bool { return slices.Contains(r.ops, op) }) {
			t.Errorf("leakRows has no row for %s", op)
		}
	}
}

// newLeakEnv mounts a cluster, and makes the files that the calls of the table use.
func newLeakEnv(t *testing.T) *leakEnv {
	c := startCluster(t, incluster.Options{Seed: 1})
	servers := &gate{}
	m := mount(t, c, "c1", mountOptions{over: servers.over,
		client: client.Config{CacheEntries: -1, InlineBytes: -1, GetTimeout: time.Hour, HedgeFloor: time.Hour, AttemptTimeout: time.Hour, Patience: time.Hour},
		mount:  fuse.Config{ReadBytes: 2 << 20, Patience: time.Hour}})
	e := &leakEnv{t: t, m: m, servers: servers, file: m.at("file"), link: m.at("link"), dir: m.at("dir"), buf: make([]byte, 128<<10)}
	e.other = mount(t, c, "c2", mountOptions{client: client.Config{InlineBytes: -1}})
	e.startMapper()
	require.NoError(t, os.WriteFile(e.file, randomBytes(seed(t), leakContent), 0o644))
	require.NoError(t, unix.Setxattr(e.file, "user.some", []byte("value"), 0))
	require.NoError(t, unix.Setxattr(e.file, "user.none", nil, 0))
	require.NoError(t, os.Symlink("somewhere", e.link))
	require.NoError(t, os.Mkdir(e.dir, 0o755))
	for i := range 20 {
		e.touch(filepath.Join(e.dir, fmt.Sprint(i)))
	}
	return e
}

// outcomes are the ways in which the calls of a row end.
func (row *leakRow) outcomes() []string {
	outcomes := []string{"success"}
	if row.asks != "" && !row.noInterrupt {
		outcomes = append(outcomes, "interrupt")
	}
	if row.asks != "" {
		outcomes = append(outcomes, "error")
	}
	if row.silence {
		outcomes = append(outcomes, "interrupted silence")
	}
	return outcomes
}

// No operation of a mount keeps memory, entries of its tables, descriptors or goroutines,
// however it ends.
func TestNoOperationKeepsAnything(t *testing.T) {
	all, interrupts := testseed.Runs(t, 40, 10_000), testseed.Runs(t, 20, 10_000)
	e := newLeakEnv(t)
	for _, row := range leakRows {
		t.Run(row.name, func(t *testing.T) {
			e.t = t
			for _, outcome := range row.outcomes() {
				times := all
				if strings.HasPrefix(outcome, "interrupt") {
					times = interrupts // each takes milliseconds
				}
				e.run(&row, outcome, 1) // one-time allocations happen here
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
	defer call.undo() // a file that stays open would block the end of the test
	defer e.m.fsys.InterruptAfter(0)
	defer e.servers.open()
	switch outcome {
	case "success":
		err := call.do()
		if errors.Is(err, unix.EINTR) {
			return // the runtime sends signals too
		}
		require.True(e.t, errors.Is(err, row.want), "%s: %v", row.name, err)
	case "error":
		e.servers.failing(row.asks, row.skip)
		err := call.do()
		require.NotZero(e.t, e.servers.open(), "%s sent no %s request", row.name, row.asks)
		require.Error(e.t, err)
	case "interrupt", "interrupted silence":
		if e.servers.hold(row.asks, row.skip); outcome != "interrupt" {
			e.servers.silent(row.asks, row.skip)
		}
		e.m.fsys.InterruptAfter(time.Millisecond)
		err := interrupted(call.do, func() bool { return e.servers.count() > 0 })
		require.NotZero(e.t, e.servers.open(), "%s sent no %s request", row.name, row.asks)
		require.Error(e.t, err)
	}
}

// interrupted makes a system call in a thread that gets signals, from when the call
// runs until it returns.
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

// idleReader is what a goroutine does that waits for the next request of the kernel. The
// library keeps up to idleReaders of them for a mount.
const idleReader = "fuse.(*fuseFD).readRequest"

func idleReaders() int { return min(max(runtime.GOMAXPROCS(0), 2), 16) + 1 }

// kept is what calls could leave behind.
type kept struct {
	ReadMemory, ClientMemory int64
	Files, Inodes, Dirs      int
	// Readers are the goroutines of the two mounts that wait for a request; Kept has all
	// others.
	Readers int
	leakcheck.Kept
}

func (e *leakEnv) kept() kept {
	k := kept{ReadMemory: e.m.fsys.ReadMemory(), ClientMemory: e.m.client.MemoryInUse(), Kept: leakcheck.Now()}
	k.Readers = k.Take(idleReader)
	k.Files, k.Inodes, k.Dirs = e.m.fsys.Entries()
	return k
}

// slack is how many background goroutines and descriptors may appear and stay.
const slack = 3

// requireKept waits until nothing is kept that was not kept before. The kernel
// releases files after their last close has returned.
func (e *leakEnv) requireKept(before kept, outcome string, times int) {
	e.t.Helper()
	var now kept
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		now = e.kept()
		if now.ReadMemory == 0 && now.ClientMemory == 0 && now.Files == 0 && now.Inodes == 0 && now.Dirs == 0 &&
			now.Descriptors <= before.Descriptors+slack && now.Count() <= before.Count()+slack && now.Readers <= 2*idleReaders() {
			return
		}
	}
	e.t.Fatalf("%d calls that ended by %s keep something: before and after %d and %d bytes of reads, %d and %d bytes of the client, %d and %d files, %d and %d inodes, %d and %d directories, %d and %d descriptors, %d and %d goroutines, and %d that wait for requests:\n%s",
		times, outcome, before.ReadMemory, now.ReadMemory, before.ClientMemory, now.ClientMemory, before.Files, now.Files, before.Inodes, now.Inodes,
		before.Dirs, now.Dirs, before.Descriptors, now.Descriptors, before.Count(), now.Count(), now.Readers, now.Grown(before.Kept))
}
