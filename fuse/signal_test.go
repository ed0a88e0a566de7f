package fuse_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// Writes that wait for servers fill the memory of requests, so that the mount reads
// no request and no interrupt. Its callers still end when they get a signal, and so
// does the mount.
func TestSignalsReachWritersThatFillTheMemory(t *testing.T) {
	for name, signal := range map[string]os.Signal{"interrupt": os.Interrupt, "kill": os.Kill} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, incluster.Options{Seed: 1})
			m := mount(t, c, "c1", mountOptions{
				client: client.Config{MemoryBytes: 24 << 20, Patience: time.Hour},
				mount:  fuse.Config{RequestBytes: 4 << 20, Patience: time.Hour, EndPatience: 30 * time.Second}})
			writers := startWriters(t, c, m, 8)
			waitUntilNothingIsRead(t, m)
			requireEnd(t, writers, signal)
			for _, n := range []string{"n1", "n2", "n3"} {
				require.NoError(t, c.Restart(n))
			}
			require.NoError(t, c.WaitReady(t.Context()))
			require.NoError(t, os.WriteFile(m.at("after"), []byte("content"), 0o644))
		})
	}
}

type writer struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// requireEnd sends the signal to all writers until they have ended, as a user who
// ends a job does. dd handles the first interrupt itself, and then closes its file.
func requireEnd(t *testing.T, writers []writer, signal os.Signal) {
	t.Helper()
	left := slices.Clone(writers)
	for end := time.Now().Add(time.Minute); len(left) > 0; time.Sleep(50 * time.Millisecond) {
		left = slices.DeleteFunc(left, writer.hasEnded)
		for _, w := range left {
			require.NoError(t, ignoreDone(w.cmd.Process.Signal(signal)))
		}
		require.True(t, time.Now().Before(end), "%d writers do not end", len(left))
	}
}

func (w writer) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// startWriters starts writing processes, and then stops their chunkservers.
func startWriters(t *testing.T, c *incluster.Cluster, m *mounted, n int) []writer {
	t.Helper()
	requireTools(t, "dd")
	var writers []writer
	for i := range n {
		w := writer{cmd: exec.Command("dd", "if=/dev/zero", "of="+m.at(fmt.Sprint("file", i)), "bs=1M"), ended: make(chan struct{})}
		require.NoError(t, w.cmd.Start())
		t.Cleanup(func() {
			_ = w.cmd.Process.Kill()
		})
		go func() {
			defer close(w.ended)
			_ = w.cmd.Wait() // it is killed
		}()
		writers = append(writers, w)
	}
	require.Eventually(t, func() bool {
		names, err := filepath.Glob(m.at("file*"))
		return err == nil && len(names) == n
	}, time.Minute, time.Millisecond)
	for _, node := range []string{"n1", "n2", "n3"} {
		c.Kill(node)
	}
	return writers
}

// waitUntilNothingIsRead returns when a request of another process is not answered.
// On a slow machine it may return early, and then the test shows less.
func waitUntilNothingIsRead(t *testing.T, m *mounted) {
	t.Helper()
	for range 60 {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		err := exec.CommandContext(ctx, "stat", m.dir).Run()
		stop()
		if err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Log("the mount answered all the time")
}

// gaveUp finds a thread that has a signal which it does not block, or that ends by
// one.
func TestThreadsWithASignalAreFound(t *testing.T) {
	const status = "Name:\tdd\nSigQ:\t0/1\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t%016x\nSigIgn:\t0000000000000000\n"
	for _, row := range []struct {
		own, shared, blocked uint64
		want                 bool
	}{{0, 0, 0, false}, {2, 0, 0, true}, {0, 2, 0, true}, {2, 2, 2, false}, {0x100, 2, 2, true}} {
		require.Equal(t, row.want, fuse.SignalPending(fmt.Appendf(nil, status, row.own, row.shared, row.blocked)), row)
	}
	require.False(t, fuse.SignalPending(nil))
	stat := func(flags, code int) []byte {
		return fmt.Appendf(nil, "12 (a) b) S 1 1 1 0 -1 %d 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 %d\n", flags, code)
	}
	require.False(t, fuse.Killed(stat(0x400000, 0)))
	require.False(t, fuse.Killed(stat(0x400004, 0x100)), "it exits by itself")
	require.True(t, fuse.Killed(stat(0x400004, 9)))
	require.False(t, fuse.Killed([]byte("12 (short")))
	self, err := os.ReadFile("/proc/thread-self/stat")
	require.NoError(t, err)
	require.False(t, fuse.Killed(self))
	dead := exec.Command("true")
	require.NoError(t, dead.Run())
	require.False(t, fuse.GaveUp(uint32(dead.Process.Pid)))
	require.False(t, fuse.GaveUp(uint32(os.Getpid())))
	require.False(t, fuse.GaveUp(0))
}

// The children of a mount's process do not inherit the FUSE device. Such a child
// would keep the mount, with all calls on it, after that process is killed.
func TestChildrenDoNotGetTheDevice(t *testing.T) {
	m := mount(t, startCluster(t, incluster.Options{Seed: 1}), "c1")
	require.NoError(t, os.WriteFile(m.at("file"), nil, 0o644))
	require.NotContains(t, shell(t, "ls -l /proc/self/fd"), "/dev/fuse")
}
