package fuse_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/stretchr/testify/require"
)

// Bytes that cannot be written are an error of fsync, and of close if fsync was not
// called. A full disk takes the device's index with it here, so the devices are out
// of service in either case.
func TestErrorsReachFsyncAndClose(t *testing.T) {
	for name, row := range map[string]struct {
		fault    error
		patience time.Duration
		says     []syscall.Errno
	}{
		"no space": {syscall.ENOSPC, time.Minute, []syscall.Errno{syscall.ENOSPC}},
		// The client looks for other disks as long as its patience lasts.
		"broken disks": {syscall.EIO, 3 * time.Second, []syscall.Errno{syscall.EIO, syscall.ETIMEDOUT}},
	} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			c := startCluster(t, incluster.Options{Seed: 1, Rule: func(node string, op vfs.Op) error {
				if broken.Load() && strings.HasPrefix(node, "n") && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpAllocate) {
					return row.fault
				}
				return nil
			}})
			m := mount(t, c, "c1", mountOptions{client: client.Config{Patience: row.patience, InlineBytes: -1}})
			data := randomBytes(seed(t), 10<<10)
			synced, err := os.Create(m.at("synced"))
			require.NoError(t, err)
			closed, err := os.Create(m.at("closed"))
			require.NoError(t, err)
			// The test may end with them open; the mount then reports that.
			defer synced.Close() //nolint:errcheck // what it says is looked at below
			defer closed.Close() //nolint:errcheck

			broken.Store(true)
			for _, f := range []*os.File{synced, closed} { // there is enough memory
				_, err = f.Write(data)
				require.NoError(t, err)
			}
			for call, err := range map[string]error{"fsync": synced.Sync(), "close": closed.Close()} {
				var errno syscall.Errno
				require.ErrorAs(t, err, &errno, call)
				require.Contains(t, row.says, errno, call)
			}
		})
	}
}

// A call that waits for servers that are down ends when its caller gets a signal.
// When they are back, calls continue.
func TestInterrupt(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	require.NoError(t, os.WriteFile(m.at("file"), []byte("content"), 0o644))
	c.Kill("m1")
	stat := exec.Command("stat", m.at("file"))
	require.NoError(t, stat.Start())
	ended := make(chan error, 1)
	go func() { ended <- stat.Wait() }()
	for over := false; !over; {
		require.NoError(t, ignoreDone(stat.Process.Signal(syscall.SIGINT)))
		select {
		case err := <-ended:
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			over = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	require.NoError(t, c.Restart("m1"))
	require.NoError(t, c.WaitReady(t.Context()))
	got, err := os.ReadFile(m.at("file"))
	require.NoError(t, err)
	require.Equal(t, "content", string(got))
}

func ignoreDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// shortEnd is for mounts that end with open files on purpose.
var shortEnd = fuse.Config{EndPatience: time.Millisecond}

// A mount that is unmounted commits all written bytes, also to files that are still
// open; those end with it.
func TestEndCommitsWhatWasWritten(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c2")
	m := mount(t, c, "c1", mountOptions{mount: shortEnd})
	data := randomBytes(seed(t), 500<<10)
	f, err := os.Create(m.at("file"))
	require.NoError(t, err)
	_, err = f.Write(data)
	require.NoError(t, err)
	require.ErrorContains(t, m.end(), "1 files were still open")
	got, err := os.ReadFile(other.at("file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	_, err = os.Stat(m.at("file"))
	require.ErrorIs(t, err, os.ErrNotExist, "it is unmounted")
	_, err = f.Write(data)
	require.ErrorIs(t, err, syscall.ENOTCONN)
	require.ErrorIs(t, f.Close(), syscall.ENOTCONN)
}

// A mount whose files are all closed ends without an error. It does so even if a
// process keeps a copy of the mount in its own mount namespace, as a container
// does.
func TestEndWithCopyInOtherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace of its own needs root")
	}
	requireTools(t, "unshare")
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1", mountOptions{mount: fuse.Config{EndPatience: 100 * time.Millisecond}})
	require.NoError(t, os.WriteFile(m.at("file"), []byte("content"), 0o644))
	other := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo copied; exec cat")
	in, err := other.StdinPipe()
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	defer func() {
		require.NoError(t, in.Close())
		require.NoError(t, other.Wait())
	}()
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, m.end())
}

// Files that are closed during the unmount were committed by their close, and cause
// no error of the unmount.
func TestEndWhileFilesAreClosed(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	other := mount(t, c, "c2")
	m := mount(t, c, "c1")
	var files []*os.File
	for i := range 100 {
		f, err := os.Create(m.at(strconv.Itoa(i)))
		require.NoError(t, err)
		_, err = f.WriteString("content")
		require.NoError(t, err)
		files = append(files, f)
	}
	closes := make(chan error, len(files))
	for _, f := range files {
		go func() { closes <- f.Close() }()
	}
	require.NoError(t, m.end())
	for range files {
		require.NoError(t, <-closes)
	}
	for i := range files {
		got, err := os.ReadFile(other.at(strconv.Itoa(i)))
		require.NoError(t, err)
		require.Equal(t, "content", string(got))
	}
}
