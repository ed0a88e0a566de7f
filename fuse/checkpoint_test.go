package fuse_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
)

// verifies reads every byte of a run's checkpoint, as `ckpt verify` does.
func verifies(t *testing.T, c *incluster.Client, path string, step uint64) {
	t.Helper()
	run, err := ckpt.OpenRun(t.Context(), c.Client, path, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	defer run.Close(t.Context()) //nolint:errcheck // it reads
	k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
	require.NoError(t, err)
	defer k.Close() //nolint:errcheck // it reads
	_, err = k.Verify(t.Context())
	require.NoError(t, err)
	data, err := k.ReadTensor(t.Context(), "step")
	require.NoError(t, err)
	require.Equal(t, incluster.StepBytes(step), data)
}

// stepCalls are system calls that change a checkpoint. part and index are files of
// a committed one, and dir is its directory. mine is a file beside the run, and
// empty a directory.
func stepCalls(run, dir, part, index, mine, empty string) map[string]func() error {
	open := func(name string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(name, flags, 0o644)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}
	}
	exchange := func(a, b string) func() error {
		return func() error { return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) }
	}
	return map[string]func() error{
		"open to write":              open(part, unix.O_WRONLY),
		"open to read and write":     open(part, unix.O_RDWR),
		"open to append":             open(part, unix.O_WRONLY|unix.O_APPEND),
		"open with O_TRUNC":          open(part, unix.O_WRONLY|unix.O_TRUNC),
		"open to read, with O_TRUNC": open(part, unix.O_RDONLY|unix.O_TRUNC),
		"open the index to write":    open(index, unix.O_RDWR),
		"creat over":                 open(part, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC),
		"creat":                      open(dir+"/new", unix.O_CREAT|unix.O_WRONLY),
		"creat, exclusive":           open(dir+"/new", unix.O_CREAT|unix.O_EXCL|unix.O_RDWR),
		"truncate to nothing":        func() error { return unix.Truncate(part, 0) },
		"truncate to more":           func() error { return unix.Truncate(part, 1<<30) },
		"chmod":                      func() error { return unix.Chmod(part, 0o600) },
		"chmod of the directory":     func() error { return unix.Chmod(dir, 0o700) },
		"chown":                      func() error { return unix.Chown(part, 7, 7) },
		"utimes":                     func() error { return unix.Utimes(part, []unix.Timeval{{Sec: 1}, {Sec: 1}}) },
		"setxattr":                   func() error { return unix.Setxattr(part, "user.x", []byte("y"), 0) },
		"setxattr of the directory":  func() error { return unix.Setxattr(dir, "user.x", []byte("y"), 0) },
		"unlink":                     func() error { return unix.Unlink(part) },
		"rmdir":                      func() error { return unix.Rmdir(dir) },
		"mkdir in it":                func() error { return unix.Mkdir(dir+"/new", 0o755) },
		"symlink in it":              func() error { return unix.Symlink("x", dir+"/new") },
		"link out of it":             func() error { return unix.Link(part, mine+".link") },
		"link into it":               func() error { return unix.Link(mine, dir+"/new") },
		"rename in it":               func() error { return unix.Rename(part, dir+"/new") },
		"rename out of it":           func() error { return unix.Rename(part, mine+".moved") },
		"rename into it":             func() error { return unix.Rename(mine, dir+"/new") },
		"rename onto a file of it":   func() error { return unix.Rename(mine, part) },
		"exchange with a file of it": exchange(mine, part),
		"rename it":                  func() error { return unix.Rename(dir, dir+".old") },
		"rename it away":             func() error { return unix.Rename(dir, mine+".dir") },
		"exchange it":                exchange(empty, dir),
		"rename its attempt":         func() error { return unix.Rename(run+"/attempt-1", run+"/attempt-2") },
		"rename its run":             func() error { return unix.Rename(run, run+".old") },
		"rename what is above":       func() error { return unix.Rename(run+"/..", run+"/../../else") },
		"unlink latest":              func() error { return unix.Unlink(run + "/latest") },
		"rename onto latest":         func() error { return unix.Rename(mine, run+"/latest") },
		"rename it onto another":     func() error { return unix.Rename(dir, empty) },
		"symlink onto latest": func() error {
			if err := unix.Symlink("elsewhere", mine+".symlink"); err != nil {
				return err
			}
			defer unix.Unlink(mine + ".symlink") //nolint:errcheck // it is there
			return unix.Rename(mine+".symlink", run+"/latest")
		},
		"truncate through latest":     func() error { return unix.Truncate(run+"/latest/"+ckpt.IndexName, 0) },
		"lchown of latest":            func() error { return unix.Lchown(run+"/latest", 7, 7) },
		"link of latest":              func() error { return unix.Linkat(unix.AT_FDCWD, run+"/latest", unix.AT_FDCWD, mine+".latest", 0) },
		"unlink the last index there": func() error { return unix.Unlink(run + "/latest/" + ckpt.IndexName) },
	}
}

// TestACommittedStepCannotBeChangedThroughAMount makes every system call that would
// change a committed checkpoint, and reads the whole checkpoint after each.
func TestACommittedStepCannotBeChangedThroughAMount(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	const top = "/runs"
	run := m.at(top + "/r")
	require.NoError(t, os.MkdirAll(run, 0o755))
	saver, err := c.Client(t.Context(), "trainer")
	require.NoError(t, err)
	defer saver.Close() //nolint:errcheck // what it saved is checked
	require.NoError(t, saver.SaveSteps(t.Context(), top+"/r", 1))
	dir, mine, empty := run+"/attempt-1/step-1", m.at("mine"), m.at("empty")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o644))
	require.NoError(t, os.Mkdir(empty, 0o755))
	part, index := dir+"/rank-00000-of-00001.safetensors", dir+"/"+ckpt.IndexName
	calls := stepCalls(run, dir, part, index, mine, empty)
	delete(calls, "rename what is above") // the kernel refuses a path that ends with ..
	calls["rename what is above"] = func() error { return unix.Rename(m.at(top), m.at(top+".old")) }
	for what, call := range calls {
		if err := call(); err != syscall.EPERM { //nolint:errorlint // a system call's own
			t.Errorf("%s: %v, want EPERM", what, err)
		}
		if _, err := os.Stat(part); err != nil {
			t.Fatalf("%s: the part is gone: %v", what, err)
		}
	}
	require.Equal(t, syscall.ENOTEMPTY, unix.Rename(empty, dir), "a directory onto one that is not empty")
	verifies(t, saver, top+"/r", 1)
	got, err := os.ReadFile(mine)
	require.NoError(t, err)
	require.Equal(t, "mine", string(got))
}

// TestRemovalOfAStepThroughAMount: `rm -r` removes a checkpoint as a whole, and
// refuses one that is being read and the last good one.
func TestRemovalOfAStepThroughAMount(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	saver, err := c.Client(t.Context(), "trainer")
	require.NoError(t, err)
	defer saver.Close() //nolint:errcheck // what it saved is checked
	require.NoError(t, saver.SaveSteps(t.Context(), "/runs/r", 1, 2, 3))
	dir := m.at("runs/r/attempt-1") + "/"
	rm := func(step string) (string, error) {
		out, err := exec.Command("rm", "-r", dir+step).CombinedOutput()
		return string(out), err
	}

	out, err := rm("step-3")
	require.NoError(t, err, out)
	to, err := os.Readlink(m.at("runs/r/latest"))
	require.NoError(t, err)
	require.Equal(t, "attempt-1/step-2", to)
	_, err = os.Lstat(m.at("runs/r/step-3"))
	require.ErrorIs(t, err, os.ErrNotExist)
	root, err := saver.Stat(t.Context(), "/runs/r")
	require.NoError(t, err)
	steps, err := ckpt.ListSteps(t.Context(), saver.Client, root.Inode(), false)
	require.NoError(t, err)
	require.Len(t, steps, 2)

	run, err := ckpt.OpenRun(t.Context(), saver.Client, "/runs/r", ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	reading, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Step: 1, Exact: true})
	require.NoError(t, err)
	out, err = rm("step-1")
	require.Error(t, err, "one that is read")
	require.Contains(t, out, "Device or resource busy")
	_, err = reading.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, reading.Close())
	require.NoError(t, run.Close(t.Context()))
	out, err = rm("step-1")
	require.NoError(t, err, out)
	out, err = rm("step-2")
	require.Error(t, err, "the last good one")
	require.Contains(t, out, "Operation not permitted")
	out, err = rm("../../r")
	require.Error(t, err, "the run of the last good one")
	require.Contains(t, out, "Operation not permitted")
	verifies(t, saver, "/runs/r", 2)
}
