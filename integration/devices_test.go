package integration_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// reloading is a chunkserver of a cluster that reads a settings file.
type reloading struct {
	t    *testing.T
	c    *devcluster.Cluster
	node *devcluster.Node
	file string
	cmd  *exec.Cmd
	out  bytes.Buffer
}

// goesByFile stops a chunkserver, and starts it again with its devices in a file.
func goesByFile(t *testing.T, c *devcluster.Cluster, node *devcluster.Node, devices ...string) *reloading {
	t.Helper()
	r := &reloading{t: t, c: c, node: node, file: filepath.Join(t.TempDir(), node.Name+".yaml")}
	require.NoError(t, node.Stop(time.Minute))
	r.name(devices...)
	path, err := binary()
	require.NoError(t, err)
	r.cmd = exec.Command(path, "chunkserver", "--config", r.file)
	r.cmd.Stderr = &r.out
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, r.cmd.Wait())
		if t.Failed() {
			t.Logf("%s:\n%s", node.Name, r.out.String())
		}
	})
	require.Eventually(t, func() bool { return node.Healthy(t.Context()) }, time.Minute, 50*time.Millisecond)
	return r
}

// name writes the devices into the settings file.
func (r *reloading) name(devices ...string) {
	r.t.Helper()
	text := fmt.Sprintf("endpoint: %s\ncerts: %s\nidentity: %s\nmode: %s\nchunkserver:\n  id: %s\n  listen: [%s]\n  admin-listen: %s\n  memory: 256MiB\n  device: [%s]\n",
		r.c.Endpoint(), r.c.Certs(), r.node.Name, r.c.Mode(), r.node.Name, r.node.Address, r.node.Admin, strings.Join(devices, ", "))
	require.NoError(r.t, os.WriteFile(r.file, []byte(text), 0o644))
}

// reload writes the devices into the file, and signals the process.
func (r *reloading) reload(devices ...string) {
	r.t.Helper()
	r.name(devices...)
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGHUP))
}

// opens counts the open files of the process below a directory.
func (r *reloading) opens(dir string) (n int) {
	r.t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.cmd.Process.Pid))
	require.NoError(r.t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, dir+"/") {
			n++
		}
	}
	return n
}

// TestDisksOfRunningProcesses uses the settings file and SIGHUP. It adds a disk to
// a running chunkserver, drains and drops the one that it had, and moves the new
// one to another running host. Nothing is restarted, a dropped device has no open
// file, and the bytes are readable at each step.
func TestDisksOfRunningProcesses(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	n2, n3 := c.Node("n2"), c.Node("n3")
	dir := func(node, name string) string { return filepath.Join(c.Dir(), node, name) }
	first := goesByFile(t, c, n2, dir("n2", "device0"))
	second := goesByFile(t, c, n3, dir("n3", "device0"))
	works(t, env, "cluster", "status", "--wait", "1m")

	local := filepath.Join(t.TempDir(), "in")
	data := make([]byte, 40<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	require.NoError(t, os.WriteFile(local, data, 0o644))
	works(t, env, "cp", local, "moraine:///f")
	reads := func() {
		t.Helper()
		back := filepath.Join(t.TempDir(), "out")
		works(t, env, "cp", "moraine:///f", back)
		have, err := os.ReadFile(back)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, have))
	}
	// devices are the ids of a host's devices that are not retired.
	devices := func(host string) (ids []string) {
		t.Helper()
		for _, d := range objects(t, works(t, env, "device", "ls", "--json")) {
			if d["host"] == host && d["state"] != "retired" {
				ids = append(ids, fmt.Sprint(d["id"]))
			}
		}
		return ids
	}
	eventually := func(what string, holds func() bool) {
		t.Helper()
		require.Eventually(t, holds, 2*time.Minute, 100*time.Millisecond, what)
	}
	// added makes a device and waits until a process uses it.
	added := func(r *reloading, name string, all ...string) string {
		t.Helper()
		before := devices(r.node.Name)
		require.NoError(t, os.MkdirAll(dir(r.node.Name, name), 0o755))
		works(t, env, "device", "format", dir(r.node.Name, name))
		r.reload(append(all, dir(r.node.Name, name))...)
		eventually("it is registered", func() bool { return len(devices(r.node.Name)) == len(before)+1 })
		now := devices(r.node.Name)
		return now[slices.IndexFunc(now, func(id string) bool { return !slices.Contains(before, id) })]
	}

	old := devices("n2")[0]
	disk := added(first, "new", dir("n2", "device0"))
	first.reload(dir("n2", "new")) // too early: nothing changes
	works(t, env, "device", "set", old, "draining")
	eventually("it is drained", func() bool { return invoke(t, env, "device", "set", old, "retired").code == 0 })
	require.NotZero(t, first.opens(dir("n2", "device0")))
	first.reload(dir("n2", "new"))
	eventually("it is let go", func() bool { return first.opens(dir("n2", "device0")) == 0 })
	require.NotZero(t, first.opens(dir("n2", "new")))
	reads()

	added(first, "third", dir("n2", "new"))
	works(t, env, "device", "set", disk, "out", "--reason", "carried to n3")
	first.reload(dir("n2", "third"))
	eventually("it is let go, to be carried", func() bool { return first.opens(dir("n2", "new")) == 0 })
	carried := dir("n3", "carried")
	require.NoError(t, os.Rename(dir("n2", "new"), carried))
	second.reload(dir("n3", "device0"), carried)
	eventually("it is on the other host", func() bool { return slices.Contains(devices("n3"), disk) })
	works(t, env, "device", "set", disk, "in")
	require.NotZero(t, second.opens(carried))
	reads()
}
