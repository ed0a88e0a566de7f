package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mount(8) starts the binary by the name mount.moraine for a line of /etc/fstab. It returns when the
// directory can be used, and passes on options. It names a wrong one, and exits as mount(8) expects.
func TestMountByTheNameOfAHelper(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "file"), []byte("content"), 0o644))
	m.umount(t)

	helper := filepath.Join(t.TempDir(), "mount.moraine")
	require.NoError(t, os.Symlink(m.bin, helper))
	run := func(program string, args ...string) (string, int) {
		cmd := exec.Command(program, args...)
		cmd.Env = m.env
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := run(helper, "moraine:///", m.dir, "-o", "ro,_netdev,nofail,x-systemd.automount,log_file="+m.log())
	require.Zero(t, code, out)
	got, err := os.ReadFile(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
	require.ErrorIs(t, os.WriteFile(filepath.Join(m.dir, "new"), nil, 0o644), syscall.EROFS)
	out, code = run(helper, "moraine:///", m.dir)
	require.Equal(t, 32, code, "it is mounted")
	require.Contains(t, out, "moraine umount "+m.dir)
	out, err = m.moraine("umount", m.dir)
	require.NoError(t, err, out)

	out, code = run(helper, "moraine:///", m.dir, "-o", "ro,quota=5")
	require.Equal(t, 1, code)
	require.Contains(t, out, `"quota=5"`)
	out, code = run(helper, "moraine:///missing", m.dir, "-o", "log_file="+m.log())
	require.Equal(t, 32, code)
	require.Contains(t, out, "not found")

	// mount.fuse starts the program of the type's name.
	out, code = run(m.bin, "moraine:///", m.dir, "-o", "rw,dev,suid,log_file="+m.log())
	require.Zero(t, code, out)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "new"), []byte("new"), 0o644))
	out, err = m.moraine("umount", m.dir)
	require.NoError(t, err, out)
}

// --force ends a mount while a program reads from chunkservers that hang: the read fails, and the
// process of the mount ends. What another program wrote before, and has not synced, is not lost.
func TestUmountForceEndsAMountWithAStuckReader(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c, "--patience", "20s")
	data := bytes.Repeat([]byte("content "), 1<<17)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "file"), data, 0o644))
	m.umount(t) // the next mount has nothing of it
	m.mount(t)
	open, err := os.Create(filepath.Join(m.dir, "open"))
	require.NoError(t, err)
	defer open.Close() //nolint:errcheck // its mount is gone by then

	hung := c.Nodes(devcluster.Chunkserver)[0]
	require.NoError(t, hung.Signal(syscall.SIGSTOP))
	resumed := false
	resume := func() {
		if !resumed {
			require.NoError(t, hung.Signal(syscall.SIGCONT))
		}
		resumed = true
	}
	defer resume()
	reader := exec.Command("cat", filepath.Join(m.dir, "file"))
	var said bytes.Buffer
	reader.Stderr = &said
	require.NoError(t, reader.Start())
	require.Eventually(t, func() bool { return opens(t, reader.Process.Pid, filepath.Join(m.dir, "file")) }, time.Minute, time.Millisecond)

	out, err := m.moraine("umount", m.dir)
	require.Error(t, err)
	require.Contains(t, out, "--force")
	require.Contains(t, out, "(cat)")
	out, err = m.moraine("umount", "--force", m.dir)
	require.NoError(t, err, out)
	m.gone(t)
	require.Error(t, reader.Wait(), "its read failed: %s", said.String())
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), " "+m.dir+" ")
	_, err = open.Write([]byte("x"))
	require.ErrorIs(t, err, unix.ENOTCONN)

	resume()
	m.mount(t)
	got, err := os.ReadFile(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	m.umount(t)
}

// opens reports whether a process has a file open.
func opens(t *testing.T, pid int, file string) bool {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == file {
			return true
		}
	}
	return false
}
