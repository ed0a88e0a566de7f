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
	// noError leaves out the outcome error: clients retry the servers for long.
	noError bool
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
	file    string // has content and attributes
	link    string
	dir     string
	buf     []byte
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

// onPath is a call that makes path or needs nothing.
func onPath(do func(e *leakEnv, path string) error, undo func(path string) error) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, path string) leakCall {
		return leakCall{func() error { return do(e, path) }, func() {
			if undo != nil {
				_ = undo(path)
			}
		}}
	}
}

// onFile is a call on the shared file, open.
func onFile(do func(e *leakEnv, fd int) error) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.file)
		return leakCall{func() error { return do(e, fd) }, undo}
	}
}

// onDirty is a call on a file of its own with uncommitted bytes.
func onDirty(flags int, do func(e *leakEnv, fd int) error) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, 0)
		_, err := unix.Pwrite(fd, e.buf[:4000], 0)
		require.NoError(e.t, err)
		return leakCall{func() error { return do(e, fd) }, undo}
	}
}

// size checks how many bytes a call returned.
func size(n, want int, err error) error {
	if err == nil && n != want {
		return fmt.Errorf("%d bytes, not %d", n, want)
	}
	return err
}

// spliced reads 4096 bytes at off into a pipe, and checks the count.
func spliced(fd int, off int64, want int) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0]) //nolint:errcheck // it was only read
	defer unix.Close(pipe[1]) //nolint:errcheck
	n, err := unix.Splice(fd, &off, pipe[1], nil, 4096, 0)
	return size(int(n), want, err)
}

const leakContent = 10_000

var leakRows = []leakRow{
	{name: "stat", ops: []string{"Lookup", "GetAttr"}, asks: "lookup",
		prep: onPath(func(e *leakEnv, _ string) error { return unix.Stat(e.file, &unix.Stat_t{}) }, nil)},
	{name: "stat of nothing", ops: []string{"Lookup"}, asks: "lookup", want: unix.ENOENT,
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Stat(path, &unix.Stat_t{}) }, nil)},
	{name: "fstat", ops: []string{"GetAttr"}, asks: "getattr",
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fstat(fd, &unix.Stat_t{}) })},
	{name: "fchmod", ops: []string{"SetAttr"}, asks: "setattr",
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fchmod(fd, 0o640) })},
	{name: "mknod", ops: []string{"Mknod"}, asks: "create",
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Mknod(path, unix.S_IFREG|0o644, 0) }, unix.Unlink)},
	{name: "mkdir", ops: []string{"Mkdir"}, asks: "create",
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Mkdir(path, 0o755) }, unix.Rmdir)},
	{name: "mkdir of what exists", ops: []string{"Mkdir"}, want: unix.EEXIST,
		prep: onPath(func(e *leakEnv, _ string) error { return unix.Mkdir(e.dir, 0o755) }, nil)},
	{name: "rmdir", ops: []string{"Rmdir", "Forget"}, asks: "remove", prep: func(e *leakEnv, path string) leakCall {
		require.NoError(e.t, unix.Mkdir(path, 0o755))
		return leakCall{func() error { return unix.Rmdir(path) }, func() { _ = unix.Rmdir(path) }}
	}},
	{name: "unlink", ops: []string{"Unlink", "Forget"}, asks: "remove", prep: func(e *leakEnv, path string) leakCall {
		e.touch(path)
		return leakCall{func() error { return unix.Unlink(path) }, func() { _ = unix.Unlink(path) }}
	}},
	{name: "unlink of an open file", ops: []string{"Unlink", "Release", "Forget"}, asks: "remove", prep: func(e *leakEnv, path string) leakCall {
		_, undo := e.open(path, 0)
		return leakCall{func() error { return unix.Unlink(path) }, undo}
	}},
	{name: "unlink whose release fails", ops: []string{"Unlink", "Release"}, prep: func(e *leakEnv, path string) leakCall {
		_, undo := e.open(path, 0)
		return leakCall{func() error { return unix.Unlink(path) }, func() {
			e.servers.failing("release", 0)
			undo()
			for i := 0; e.servers.count() == 0 && i < 10_000; i++ { // in the background
				time.Sleep(time.Millisecond)
			}
			e.servers.open()
		}}
	}},
	{name: "rename", ops: []string{"Rename"}, asks: "rename", prep: func(e *leakEnv, path string) leakCall {
		e.touch(path)
		e.touch(path + "-to")
		return leakCall{func() error { return unix.Rename(path, path+"-to") }, func() {
			_ = unix.Unlink(path)
			_ = unix.Unlink(path + "-to")
		}}
	}},
	{name: "link", ops: []string{"Link"}, asks: "link",
		prep: onPath(func(e *leakEnv, path string) error { return unix.Link(e.file, path) }, unix.Unlink)},
	{name: "symlink", ops: []string{"Symlink"}, asks: "create",
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Symlink("somewhere", path) }, unix.Unlink)},
	{name: "readlink", ops: []string{"Readlink"}, asks: "getattr",
		prep: onPath(func(e *leakEnv, _ string) error {
			n, err := unix.Readlink(e.link, make([]byte, 100))
			return size(n, len("somewhere"), err)
		}, nil)},
	{name: "getxattr", ops: []string{"GetXAttr"}, asks: "getxattr",
		prep: onFile(func(_ *leakEnv, fd int) error {
			n, err := unix.Fgetxattr(fd, "user.some", make([]byte, 100))
			return size(n, 5, err)
		})},
	{name: "getxattr of no bytes", ops: []string{"GetXAttr"}, asks: "getxattr",
		prep: onFile(func(_ *leakEnv, fd int) error {
			n, err := unix.Fgetxattr(fd, "user.none", make([]byte, 100))
			return size(n, 0, err)
		})},
	{name: "getxattr with no room", ops: []string{"GetXAttr"}, want: unix.ERANGE,
		prep: onFile(func(_ *leakEnv, fd int) error {
			_, err := unix.Fgetxattr(fd, "user.some", make([]byte, 1))
			return err
		})},
	{name: "listxattr", ops: []string{"ListXAttr"}, asks: "getxattr",
		prep: onFile(func(_ *leakEnv, fd int) error {
			_, err := unix.Flistxattr(fd, make([]byte, 1000))
			return err
		})},
	{name: "setxattr", ops: []string{"SetXAttr"}, asks: "setxattr",
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fsetxattr(fd, "user.other", []byte("value"), 0) })},
	{name: "removexattr of nothing", ops: []string{"RemoveXAttr"}, asks: "setxattr", want: unix.ENODATA,
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fremovexattr(fd, "user.absent") })},
	{name: "create", ops: []string{"Create", "Release"}, asks: "create", prep: func(_ *leakEnv, path string) leakCall {
		fd := -1
		return leakCall{func() (err error) {
			fd, err = unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o644)
			return err
		}, func() {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			_ = unix.Unlink(path)
		}}
	}},
	{name: "open", ops: []string{"Open", "Flush", "Release"}, asks: "getattr", prep: openOf(func(e *leakEnv) string { return e.file }, 0)},
	{name: "open that was permitted", ops: []string{"Open"}, asks: "getattr", skip: 1, prep: openOf(func(e *leakEnv) string { return e.file }, 0)},
	{name: "open of a directory", ops: []string{"OpenDir", "ReleaseDir"},
		prep: openOf(func(e *leakEnv) string { return e.dir }, unix.O_DIRECTORY)},
	{name: "read", ops: []string{"Read"}, asks: "getextents", prep: onFile(func(e *leakEnv, fd int) error {
		n, err := unix.Pread(fd, e.buf[:4096], 0)
		return size(n, 4096, err)
	})},
	{name: "read of chunks", ops: []string{"Read"}, asks: "get_chunk", noError: true, prep: onFile(func(e *leakEnv, fd int) error {
		n, err := unix.Pread(fd, e.buf, 0)
		return size(n, leakContent, err)
	})},
	{name: "read at the end", ops: []string{"Read"}, prep: onFile(func(e *leakEnv, fd int) error {
		n, err := unix.Pread(fd, e.buf, leakContent)
		return size(n, 0, err)
	})},
	{name: "read by splice", ops: []string{"Read"}, prep: onFile(func(_ *leakEnv, fd int) error { return spliced(fd, 0, 4096) })},
	{name: "read by splice at the end", ops: []string{"Read"}, prep: onFile(func(_ *leakEnv, fd int) error { return spliced(fd, leakContent, 0) })},
	{name: "listxattr of none", ops: []string{"ListXAttr"}, prep: func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, 0)
		return leakCall{func() error {
			n, err := unix.Flistxattr(fd, make([]byte, 1000))
			return size(n, 0, err)
		}, undo}
	}},
	{name: "write of no bytes", ops: []string{"Write"}, prep: onDirty(0, func(_ *leakEnv, fd int) error {
		n, err := unix.Pwrite(fd, nil, 1000)
		return size(n, 0, err)
	})},
	{name: "write", ops: []string{"Write"}, prep: onDirty(0, func(e *leakEnv, fd int) error {
		n, err := unix.Pwrite(fd, e.buf[:5000], 1000)
		return size(n, 5000, err)
	})},
	{name: "write that syncs", ops: []string{"Write"}, asks: "commit", prep: func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, unix.O_DSYNC)
		return leakCall{func() error {
			n, err := unix.Pwrite(fd, e.buf[:5000], 0)
			return size(n, 5000, err)
		}, undo}
	}},
	{name: "fsync", ops: []string{"Fsync"}, asks: "commit", prep: onDirty(0, func(_ *leakEnv, fd int) error { return unix.Fsync(fd) })},
	{name: "close", ops: []string{"Flush", "Release"}, asks: "commit", prep: func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, 0)
		_, err := unix.Pwrite(fd, e.buf[:4000], 0)
		require.NoError(e.t, err)
		twin, err := unix.Dup(fd) // whose close is the last one
		require.NoError(e.t, err)
		return leakCall{func() error { return unix.Close(twin) }, undo}
	}},
	{name: "readdir", ops: []string{"ReadDir", "ReadDirPlus"}, asks: "readdir", prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.dir)
		return leakCall{func() error {
			_, err := unix.Getdents(fd, e.buf)
			return err
		}, undo}
	}},
	{name: "readdir at the end", ops: []string{"ReadDir", "ReadDirPlus"}, prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.dir)
		for n := 1; n > 0; {
			var err error
			n, err = unix.Getdents(fd, e.buf)
			require.NoError(e.t, err)
		}
		return leakCall{func() error {
			n, err := unix.Getdents(fd, e.buf)
			return size(n, 0, err)
		}, undo}
	}},
	{name: "fsync of a directory", ops: []string{"FsyncDir"}, prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.dir)
		return leakCall{func() error { return unix.Fsync(fd) }, undo}
	}},
	{name: "statfs", ops: []string{"StatFs"}, asks: "getcluster",
		prep: onPath(func(e *leakEnv, _ string) error { return unix.Statfs(e.dir, &unix.Statfs_t{}) }, nil)},
}

func openOf(name func(*leakEnv) string, flags int) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, _ string) leakCall {
		fd := -1
		return leakCall{func() (err error) {
			fd, err = unix.Open(name(e), unix.O_RDONLY|flags, 0)
			return err
		}, func() {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}}
	}
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

// However an operation of a mount ends, it keeps no memory, entries of its tables,
// descriptors or goroutines.
func TestNoOperationKeepsAnything(t *testing.T) {
	// An interrupt waits for a thread: a few suffice to show one that each keeps.
	all, interrupts := testseed.Runs(t, 200, 10_000), testseed.Runs(t, 5*slack, 10_000)
	c := startCluster(t, incluster.Options{Seed: 1})
	servers := &gate{}
	m := mount(t, c, "c1", mountOptions{over: servers.over,
		client: client.Config{CacheEntries: -1, GetTimeout: time.Hour, HedgeFloor: time.Hour, AttemptTimeout: time.Hour, Patience: time.Hour},
		mount:  fuse.Config{ReadBytes: 2 << 20, Patience: time.Minute}})
	e := &leakEnv{t: t, m: m, servers: servers, file: m.at("file"), link: m.at("link"), dir: m.at("dir"), buf: make([]byte, 128<<10)}
	require.NoError(t, os.WriteFile(e.file, randomBytes(seed(t), leakContent), 0o644))
	require.NoError(t, unix.Setxattr(e.file, "user.some", []byte("value"), 0))
	require.NoError(t, unix.Setxattr(e.file, "user.none", nil, 0))
	require.NoError(t, os.Symlink("somewhere", e.link))
	require.NoError(t, os.Mkdir(e.dir, 0o755))
	for i := range 20 {
		e.touch(filepath.Join(e.dir, fmt.Sprint(i)))
	}
	for _, row := range leakRows {
		t.Run(row.name, func(t *testing.T) {
			e.t = t
			outcomes := []string{"success"}
			if row.asks != "" {
				outcomes = append(outcomes, "interrupt")
				if !row.noError {
					outcomes = append(outcomes, "error")
				}
			}
			for _, outcome := range outcomes {
				times := all
				if outcome == "interrupt" {
					times = interrupts
				}
				e.run(&row, outcome, 1) // one-time allocations happen here
				before := e.kept()
				e.run(&row, outcome, times)
				e.requireKept(before, outcome, times)
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
	case "interrupt":
		e.servers.hold(row.asks, row.skip)
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
			now.Descriptors <= before.Descriptors+slack && now.Goroutines <= before.Goroutines+slack {
			return
		}
	}
	e.t.Fatalf("%d calls that ended by %s keep something: before %+v, after %+v", times, outcome, before, now)
}
