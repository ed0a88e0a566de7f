package integration_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine/integration/procs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestNoQuorum: with two of three metadata servers dead every command ends, and
// says what is the matter; when they are back all is there.
func TestNoQuorum(t *testing.T) {
	c := startProcs(t, procs.Config{Chunkservers: 1})
	env := settingsFor(c)
	works(t, env, "cp", "/proc/self/status", "moraine:///kept")
	for _, name := range []string{"m1", "m2"} {
		require.NoError(t, c.Node(name).Kill())
	}
	var all errgroup.Group
	commands := [][]string{{"cluster", "status"}, {"ls", "moraine:///"}, {"cp", "/proc/self/status", "moraine:///new"}, {"ckpt", "ls", "moraine:///"}}
	outcomes := make([]outcome, len(commands))
	for i, args := range commands {
		cmd := command(t, env, args...)
		all.Go(func() error { outcomes[i] = finish(t, cmd); return nil })
	}
	require.NoError(t, all.Wait())
	for _, o := range outcomes {
		requireRefused(t, o, 1, "no majority of the metadata servers", c.Endpoint(), "start those that are down")
	}
	require.NoError(t, c.Node("m1").Start())
	require.NoError(t, c.Node("m1").Ready(t.Context()))
	require.Equal(t, "kept\n", works(t, env, "ls", "moraine:///"))
}

// TestInterruptedCopies sends Ctrl-C to copies that cannot go on, in and out.
func TestInterruptedCopies(t *testing.T) {
	c := startProcs(t, procs.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	dir := t.TempDir()
	interrupt := func(cmd *exec.Cmd, began func() bool) outcome {
		t.Helper()
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		require.NoError(t, cmd.Start())
		require.Eventually(t, began, time.Minute, 10*time.Millisecond)
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait() // its code is looked at
		return outcome{"", errOut.String(), cmd.ProcessState.ExitCode()}
	}

	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	cmd := command(t, env, "cp", pipe, "moraine:///in")
	o := interrupt(cmd, func() bool {
		w, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return false // nobody reads yet
		}
		t.Cleanup(func() { w.Close() })
		_, err = w.Write(make([]byte, 1000))
		return err == nil
	})
	requireRefused(t, o, 1, "interrupted")
	require.Empty(t, works(t, env, "ls", "moraine:///"))

	whole := filepath.Join(dir, "whole")
	require.NoError(t, os.WriteFile(whole, make([]byte, 1<<20), 0o644))
	works(t, env, "cp", whole, "moraine:///whole")
	out := filepath.Join(dir, "out")
	require.NoError(t, os.Mkdir(out, 0o755))
	require.NoError(t, c.Node("n1").Signal(syscall.SIGSTOP))
	o = interrupt(command(t, env, "cp", "moraine:///whole", out), func() bool {
		names, err := os.ReadDir(out)
		return err == nil && len(names) > 0
	})
	require.NoError(t, c.Node("n1").Signal(syscall.SIGCONT))
	requireRefused(t, o, 1, "interrupted")
	names, err := os.ReadDir(out)
	require.NoError(t, err)
	require.Empty(t, names, "neither half a file nor what it was made in")
	works(t, env, "cp", "moraine:///whole", out)
}

// TestDevClusterLeavesNobodyBehind ends a dev-cluster by Ctrl-C and by SIGKILL;
// a second one on its directory is refused meanwhile.
func TestDevClusterLeavesNobodyBehind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	args := []string{"dev-cluster", "--json", "--mode", "crc", "--dir", dir, "--metadata", "1", "--chunkservers", "1"}
	for _, sig := range []os.Signal{os.Interrupt, os.Kill} {
		cmd := command(t, nil, args...)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		pids := map[string]int{}
		lines := json.NewDecoder(stdout)
		for range 4 { // m1, n1, the bucket and the S3 endpoint
			var n struct {
				Name string
				Pid  int
			}
			require.NoError(t, lines.Decode(&n))
			pids[n.Name] = n.Pid
		}
		requireRefused(t, invoke(t, nil, args...), 1, dir, "runs already")
		for name, pid := range pids {
			require.NoError(t, syscall.Kill(pid, 0), "%s is as it was", name)
		}
		require.NoError(t, cmd.Process.Signal(sig))
		_ = cmd.Wait() // its code is looked at
		if sig == os.Interrupt {
			require.Zero(t, cmd.ProcessState.ExitCode())
		}
		for name, pid := range pids {
			require.Eventually(t, func() bool { return gone(pid) }, time.Minute, 10*time.Millisecond, name)
		}
	}
}

// gone reports whether no process runs under pid: it has ended, whether or not
// whoever inherited it has looked.
func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, state, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(state, "Z")
}
