package integration_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// mountProc is `moraine mount`, with the process that serves it.
type mountProc struct {
	dir string
	pid int
	fd  int // of the process
	env []string
	bin string
	// args are further arguments of the command
	args []string
}

// moraine runs a command, with the cluster's address in its environment.
func (m *mountProc) moraine(args ...string) (string, error) {
	cmd := exec.Command(m.bin, args...)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mountCluster mounts a cluster's root with the command, until the test ends.
func mountCluster(t *testing.T, c *devcluster.Cluster, args ...string) *mountProc {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	} else {
		require.NoError(t, f.Close())
	}
	bin, err := binary()
	require.NoError(t, err)
	m := &mountProc{dir: t.TempDir(), bin: bin, args: args, env: append(os.Environ(), "MORAINE_ENDPOINT="+c.Endpoint(),
		"MORAINE_CERTS="+c.Certs(), "MORAINE_IDENTITY=admin", "MORAINE_MODE="+c.Mode())}
	m.mount(t)
	t.Cleanup(func() { _ = unix.Unmount(m.dir, unix.MNT_DETACH) }) // if the test failed
	return m
}

func (m *mountProc) mount(t *testing.T) {
	t.Helper()
	out, err := m.moraine(append([]string{"mount", "moraine:///", m.dir, "--json", "--log-file", m.log()}, m.args...)...)
	require.NoError(t, err, out)
	var said struct{ Pid int }
	require.NoError(t, json.Unmarshal([]byte(out[bytes.IndexByte([]byte(out), '{'):]), &said), out)
	m.pid = said.Pid
	m.fd, err = unix.PidfdOpen(m.pid, 0)
	require.NoError(t, err)
}

// gone waits until the process has ended.
func (m *mountProc) gone(t *testing.T) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLIN}}, -1)
		if n == 1 {
			require.NoError(t, unix.Close(m.fd))
			return
		}
		require.ErrorIs(t, err, unix.EINTR)
	}
}

func (m *mountProc) log() string { return m.dir + ".log" }

// umount unmounts cleanly.
func (m *mountProc) umount(t *testing.T) {
	t.Helper()
	out, err := m.moraine("umount", m.dir)
	require.NoError(t, err, out)
	m.gone(t)
}

// kill ends the process with SIGKILL, and returns when it is gone.
func (m *mountProc) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, unix.PidfdSendSignal(m.fd, unix.SIGKILL, nil, 0))
	m.gone(t)
}

// The metadata leader is killed repeatedly while tar unpacks onto a mount. tar
// succeeds, and the unpacked files equal the packed ones.
func TestMountSurvivesLeaderKill(t *testing.T) { surviveLeaderKills(t) }

// surviveLeaderKills has a mount with further arguments survive.
func surviveLeaderKills(t *testing.T, args ...string) {
	t.Helper()
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 3})
	m := mountCluster(t, c, args...)
	session := connect(t, c, client.Config{})
	r := random(seed(t))
	src := t.TempDir()
	for i := range 150 {
		dir := filepath.Join(src, fmt.Sprintf("d%d", i%7))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		data := make([]byte, r.IntN(200_000))
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), data, 0o644))
	}
	const script = `set -euo pipefail; mkdir "$2/out"; tar -C "$1" -c . | tar -C "$2/out" -xp
		(cd "$1"; find . -type f | sort | xargs sha256sum) > "$2/want"
		(cd "$2/out"; find . -type f | sort | xargs sha256sum) > "$2/got"; cmp "$2/want" "$2/got"`
	var out bytes.Buffer
	tar := exec.Command("bash", "-c", script, "bash", src, m.dir)
	tar.Stdout, tar.Stderr = &out, &out
	require.NoError(t, tar.Start())
	ended, tarErr := make(chan struct{}), error(nil)
	go func() {
		defer close(ended)
		tarErr = tar.Wait()
	}()
	// unpacked waits until there are more files, or tar has ended.
	unpacked := func(more int) (over bool) {
		for before := countFiles(t, session); ; time.Sleep(10 * time.Millisecond) {
			select {
			case <-ended:
				require.NoError(t, tarErr, out.String())
				return true
			default:
			}
			if countFiles(t, session) >= before+more {
				return false
			}
		}
	}
	kills := 0
	for over := unpacked(5); !over && kills < rounds(3, 8); over = unpacked(10) {
		node := c.Node(leaderOf(t, session))
		require.NoError(t, node.Kill())
		kills++
		require.NoError(t, node.Start())
		require.NoError(t, node.Ready(t.Context()))
	}
	<-ended
	require.NoError(t, tarErr, out.String())
	t.Logf("%d leaders killed", kills)
	require.Positive(t, kills)
	m.umount(t)
}

// countFiles counts the files below /out.
func countFiles(t *testing.T, c *client.Client) (n int) {
	t.Helper()
	err := c.Walk(t.Context(), "/out", func(string, client.Attr) error {
		n++
		return nil
	})
	if !errors.Is(err, moraine.NotFound) {
		require.NoError(t, err)
	}
	return n
}

// A killed mount loses nothing that was synced or closed. Every call on the dead
// mount returns an error that says so, and both commands remove it.
func TestKilledMountLosesNothingSynced(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	m := mountCluster(t, c, "--no-supervisor")
	r := random(seed(t))
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "closed"), data, 0o644))
	f, err := os.Create(filepath.Join(m.dir, "synced"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	_, err = f.Write(data) // no promise covers this
	require.NoError(t, err)
	m.kill(t)
	_, err = os.Stat(m.dir)
	require.ErrorIs(t, err, syscall.ENOTCONN)
	_, err = f.Write(data)
	require.ErrorIs(t, err, syscall.ENOTCONN)

	m.mount(t) // on the same directory
	for _, name := range []string{"closed", "synced"} {
		got, err := os.ReadFile(filepath.Join(m.dir, name))
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(got), len(data))
		require.True(t, bytes.Equal(data, got[:len(data)]), name)
	}
	m.kill(t)
	out, err := m.moraine("umount", m.dir)
	require.NoError(t, err, out)
	entries, err := os.ReadDir(m.dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// The commands say what is wrong, and what to do. A process that a signal ends
// commits the written bytes.
func TestMountCommands(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	m := mountCluster(t, c)
	out, err := m.moraine("mount", "moraine:///", m.dir)
	require.Error(t, err)
	require.Contains(t, out, "moraine umount "+m.dir)
	out, err = m.moraine("mount", "moraine:///not-there", t.TempDir(), "--log-file", m.log())
	require.Error(t, err)
	require.Contains(t, out, "not found")
	out, err = m.moraine("umount", t.TempDir())
	require.Error(t, err)
	require.Contains(t, out, "no mount of moraine")

	f, err := os.Create(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	out, err = m.moraine("umount", m.dir)
	require.Error(t, err)
	require.Contains(t, out, fmt.Sprintf("process %d", os.Getpid()))
	require.NoError(t, f.Close())
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "file"), []byte("content"), 0o644))
	m.umount(t)

	m.mount(t)
	got, err := os.ReadFile(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
	require.NoError(t, unix.PidfdSendSignal(m.fd, unix.SIGTERM, nil, 0))
	m.gone(t)
	entries, err := os.ReadDir(m.dir)
	require.NoError(t, err)
	require.Empty(t, entries, "it is unmounted")

	m.mount(t)
	for _, n := range c.All() {
		require.NoError(t, n.Kill())
	}
	m.umount(t) // a cluster that does not answer keeps no mount
}

// However much is written and read concurrently, the memory of a mount's process
// stays within a few times --memory. Besides file data there are the runtime, the
// binary, and memory that the collector has not freed yet.
func TestMountKeepsToItsMemory(t *testing.T) {
	const memory, files, each = 64 << 20, 12, 32 << 20
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3})
	m := mountCluster(t, c, "--memory", fmt.Sprint(memory))
	daemon := m.daemon(t, 0)
	idle := peakMemory(t, daemon)
	data := make([]byte, each)
	r := random(seed(t))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	at := func(i int) string { return filepath.Join(m.dir, fmt.Sprint(i)) }
	var g errgroup.Group
	for i := range files {
		g.Go(func() error { return os.WriteFile(at(i), data, 0o644) })
	}
	require.NoError(t, g.Wait())
	for i := range files {
		g.Go(func() error {
			got, err := os.ReadFile(at(i))
			if err == nil && !bytes.Equal(data, got) {
				err = fmt.Errorf("file %d is not what was written", i)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	peak := peakMemory(t, daemon)
	t.Logf("%d MiB through %d MiB; the process had %d MiB at most, %d MiB when it was idle", files*each>>20, memory>>20, peak>>20, idle>>20)
	require.Less(t, peak, idle+3*memory)
	m.umount(t)
}

// peakMemory is the peak memory of a process, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(status), "VmHWM:")
	require.True(t, ok)
	var kib int64
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(t, err)
	return kib << 10
}
