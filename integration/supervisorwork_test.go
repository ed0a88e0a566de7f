package integration_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// work is programs that use a mount until the test stops them.
type work struct {
	group errgroup.Group
	ctx   context.Context
	stop  context.CancelFunc
}

// startWork starts a reader of a large file, a writer, and a lister of a directory, each in a loop.
// lossy says that a daemon is killed: then a write that is not committed may be lost, which fsync
// or close must report.
func startWork(t *testing.T, m *mountProc, lossy bool) *work {
	t.Helper()
	w := &work{}
	w.ctx, w.stop = context.WithCancel(t.Context())
	data := randomBytes(random(seed(t)), 16<<20)
	large := filepath.Join(m.dir, "large")
	require.NoError(t, os.WriteFile(large, data, 0o644))
	dir := filepath.Join(m.dir, "listed")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for i := range 300 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
	}
	loop := func(do func() error) {
		w.group.Go(func() error {
			for w.ctx.Err() == nil {
				if err := do(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	want := sha256.Sum256(data)
	loop(func() error {
		h, f := sha256.New(), (*os.File)(nil)
		f, err := os.Open(large)
		if err != nil {
			return err
		}
		_, err = io.Copy(h, f)
		if err == nil && !bytes.Equal(h.Sum(nil), want[:]) {
			err = errors.New("the reader got other bytes")
		}
		return errors.Join(err, f.Close())
	})
	loop(func() error {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) != 300 {
			err = fmt.Errorf("the directory has %d entries", len(entries))
		}
		return err
	})
	n := 0
	loop(func() error {
		n++
		return writeOnce(filepath.Join(m.dir, fmt.Sprintf("written%d", n%4)), data[:1+n*7919%(2<<20)], lossy)
	})
	return w
}

// writeOnce replaces a file, syncs it, and reads it again.
func writeOnce(name string, data []byte, lossy bool) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err = f.WriteAt(data, 0); err == nil {
			err = f.Sync()
		}
		if !lossy || !errors.Is(err, syscall.EIO) {
			break
		}
	}
	if err != nil {
		return err
	}
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("the writer reads other bytes than it synced")
	}
	return nil
}

func (w *work) end(t *testing.T) {
	t.Helper()
	w.stop()
	require.NoError(t, w.group.Wait())
}

// TestProgramsWorkOnWhileDaemonsCrash: the daemon is killed again and again under running programs, one
// of which has its working directory on the mount. They get no error but that of lost writes.
func TestProgramsWorkOnWhileDaemonsCrash(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	w := startWork(t, m, true)
	for range rounds(3, 20) {
		time.Sleep(300 * time.Millisecond) // of work
		m.crash(t)
		if long() {
			time.Sleep(15 * time.Second) // fewer than the supervisor takes for a loop
		}
	}
	w.end(t)
	m.umount(t)
}

// TestUpgradeUnderRunningPrograms: no program notices that the daemon is replaced. What was written and
// not synced is there afterwards.
func TestUpgradeUnderRunningPrograms(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	w := startWork(t, m, false)
	f, err := os.Create(filepath.Join(m.dir, "held"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Remove(filepath.Join(m.dir, "held")))
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	for i := range rounds(3, 20) {
		_, err := f.WriteAt([]byte{byte(i)}, int64(i))
		require.NoError(t, err)
		old := m.daemon(t, 0)
		out, err := m.moraine("mount", "--upgrade", m.dir, "--json")
		require.NoError(t, err, out)
		var said struct{ Pid int }
		require.NoError(t, json.Unmarshal([]byte(out), &said))
		require.NotEqual(t, old, said.Pid)
		require.Equal(t, m.daemon(t, old), said.Pid)
		require.NoError(t, f.Sync())
		got := make([]byte, i+1)
		_, err = f.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, byte(i), got[i])
	}
	w.end(t)
	require.NoError(t, f.Close())
	m.umount(t)
}

// TestAnUpgradeThatFailsLeavesTheOldDaemon: the supervisor is to start a program that is no daemon.
func TestAnUpgradeThatFailsLeavesTheOldDaemon(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	f, err := os.Create(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	defer f.Close()
	old := m.daemon(t, 0)
	for _, program := range []string{"/bin/false", "/bin/true", "/nothing/here", "/etc/passwd"} {
		require.NotEmpty(t, m.askUpgrade(t, program), program)
		_, err = f.Write([]byte(program))
		require.NoError(t, err)
		require.NoError(t, f.Sync())
	}
	require.NoError(t, unix.Kill(old, 0))
	require.Equal(t, old, m.daemon(t, 0))
	require.NoError(t, f.Close())
	m.umount(t)
	out, err := m.moraine("mount", "--upgrade", m.dir)
	require.Error(t, err)
	require.Contains(t, out, "no mount of moraine")
}

// askUpgrade has the supervisor start a program, and returns its error.
func (m *mountProc) askUpgrade(t *testing.T, program string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(m.dir))
	socket := filepath.Join("/run/moraine", "mount-"+hex.EncodeToString(sum[:8])+".sockup")
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	resp, err := c.Post("http://mount/upgrade?"+url.Values{"binary": {program}}.Encode(), "", nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	var said struct{ Error string }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&said))
	return said.Error
}

// TestADaemonThatCrashesInALoop: the supervisor gives up, and calls fail instead of waiting.
func TestADaemonThatCrashesInALoop(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	f, err := os.Create(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	defer f.Close()
	for old := 0; m.answers() == nil; { // the supervisor does not count one that was not ready yet
		old = m.killDaemon(t, old)
	}
	m.gone(t)
	_, err = f.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.ENOTCONN)
	m.mount(t) // clears the dead mount
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "file"), nil, 0o644))
	m.umount(t)
}

// TestAMountWithoutItsSupervisor: the daemon goes on when its supervisor is killed. Both ways to
// unmount work, and a crash then ends the mount.
func TestAMountWithoutItsSupervisor(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	orphan := func() int {
		pid := m.daemon(t, 0)
		m.kill(t)
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, "file"), []byte("content"), 0o644))
		return pid
	}
	orphan()
	out, err := m.moraine("umount", m.dir)
	require.NoError(t, err, out)
	m.mount(t)
	orphan()
	held, err := os.Open(filepath.Join(m.dir, "file"))
	require.NoError(t, err)
	defer held.Close()
	for range 1000 { // until the daemon has noticed
		if out, err = m.moraine("umount", "--force", m.dir); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	require.NoError(t, err, out)
	m.mount(t)
	require.NoError(t, unix.Kill(orphan(), unix.SIGKILL))
	require.Eventually(t, func() bool {
		_, err := os.Stat(m.dir)
		return errors.Is(err, syscall.ENOTCONN)
	}, time.Minute, 10*time.Millisecond)
	m.mount(t)
	m.umount(t)
}

// TestSIGTERMAfterARestart: SIGTERM to the supervisor commits what was written, also through a daemon
// that is not the first, and so does SIGTERM to the daemon.
func TestSIGTERMAfterARestart(t *testing.T) {
	t.Parallel()
	_, m := supervised(t)
	for _, toDaemon := range []bool{false, true} {
		m.crash(t)
		f, err := os.Create(filepath.Join(m.dir, "file"))
		require.NoError(t, err)
		_, err = f.Write([]byte("written"))
		require.NoError(t, err)
		pid := m.pid
		if toDaemon {
			pid = m.daemon(t, 0)
		}
		require.NoError(t, unix.Kill(pid, unix.SIGTERM))
		time.Sleep(100 * time.Millisecond)
		_ = f.Close() // the end of the mount waits for it
		m.gone(t)
		m.mount(t)
		got, err := os.ReadFile(filepath.Join(m.dir, "file"))
		require.NoError(t, err)
		require.Equal(t, "written", string(got))
	}
	m.umount(t)
}
