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

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestNoQuorum: while two of three metadata servers are dead every command ends
// with a clear error. When they are back everything works.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Chunkservers: 1})
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
		requireRefused(t, o, 1, "no majority of the metadata servers", c.Endpoint(), "start those that are down", "moraine metadata status")
	}
	lookWithoutLeader(t, c, env)
	require.NoError(t, c.Node("m1").Start())
	require.NoError(t, c.Node("m1").Ready(t.Context()))
	require.Equal(t, "kept\n", works(t, env, "ls", "moraine:///"))
}

// lookWithoutLeader inspects metadata servers of which only m3 is left. The command
// shows what m3 knows, and what to do. It gets only the address of m3, which names
// the others.
func lookWithoutLeader(t *testing.T, c *devcluster.Cluster, env []string) {
	t.Helper()
	env = append(env, "MORAINE_ENDPOINT="+c.Node("m3").Address)
	var all errgroup.Group
	commands := [][]string{{"metadata", "status"}, {"metadata", "ls"}, {"metadata", "status", "--json"}, {"metadata", "ls", "--json"}}
	outcomes := make([]outcome, len(commands))
	for i, args := range commands {
		cmd := command(t, env, args...)
		all.Go(func() error { outcomes[i] = finish(t, cmd); return nil })
	}
	require.NoError(t, all.Wait())
	for _, o := range outcomes {
		t.Logf("%s", o.stdout)
		require.Equal(t, 1, o.code, o.stderr)
		require.Contains(t, o.stderr, "1 of 3 voters answer, and an election needs 2")
		require.Contains(t, o.stderr, "Start what is down (m1, m2) again")
		require.Contains(t, o.stderr, "metadata force-quorum")
	}
	for _, o := range outcomes[:2] {
		require.Contains(t, o.stdout, "NO ANSWER")
		require.Contains(t, o.stdout, "connection refused")
		require.Contains(t, o.stdout, "knows no leader, last one seen")
	}
	status := objects(t, outcomes[2].stdout)[0]
	require.Equal(t, "", status["leader"])
	require.EqualValues(t, 3, status["voters"])
	require.Contains(t, outcomes[2].stderr, status["next"])
	rows := objects(t, outcomes[3].stdout)
	require.Len(t, rows, 3)
	for i, row := range rows {
		require.Equal(t, []string{"m1", "m2", "m3"}[i], row["id"])
		require.Equal(t, i == 2, row["alive"])
	}
	require.Equal(t, "alone", rows[2]["state"])
	require.NotZero(t, rows[2]["applied"])
	require.NotZero(t, rows[2]["log_last"])
	require.NotZero(t, rows[2]["term"])
}

// TestInterruptedCopies sends Ctrl-C to copies that cannot continue, in and out.
func TestInterruptedCopies(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	dir := t.TempDir()
	interrupt := func(cmd *exec.Cmd, began func() bool) outcome {
		t.Helper()
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		require.NoError(t, cmd.Start())
		require.Eventually(t, began, time.Minute, 10*time.Millisecond)
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait() // its exit code is checked
		return outcome{"", errOut.String(), cmd.ProcessState.ExitCode()}
	}

	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	cmd := command(t, env, "cp", pipe, "moraine:///in")
	o := interrupt(cmd, func() bool {
		w, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return false // no reader yet
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

// TestDevClusterLeavesNoProcess ends a dev-cluster by Ctrl-C and by SIGKILL. A
// second one on its directory is refused meanwhile.
func TestDevClusterLeavesNoProcess(t *testing.T) {
	t.Parallel()
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
		requireRefused(t, invoke(t, nil, args...), 1, dir, "already running")
		for name, pid := range pids {
			require.NoError(t, syscall.Kill(pid, 0), "%s is as it was", name)
		}
		require.NoError(t, cmd.Process.Signal(sig))
		_ = cmd.Wait() // its exit code is checked
		if sig == os.Interrupt {
			require.Zero(t, cmd.ProcessState.ExitCode())
		}
		for name, pid := range pids {
			require.Eventually(t, func() bool { return gone(pid) }, time.Minute, 10*time.Millisecond, name)
		}
	}
}

// gone reports whether no process runs under pid: it has ended, whether or not its
// parent has collected it.
func gone(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, state, ok := strings.Cut(string(stat), ") ")
	return ok && strings.HasPrefix(state, "Z")
}
