package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// agentProc is `moraine agent` as a process.
type agentProc struct {
	t   *testing.T
	c   *devcluster.Cluster
	dir string // in memory
	// memory and grace are --arena-memory and --grace.
	memory, grace string
	cmd           *exec.Cmd
	log           bytes.Buffer
}

func newAgentProc(t *testing.T, c *devcluster.Cluster) *agentProc {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "moraine-test-")
	require.NoError(t, err)
	a := &agentProc{t: t, c: c, dir: dir, memory: "48MiB", grace: "25s"}
	t.Cleanup(func() {
		if a.cmd != nil {
			_ = a.cmd.Process.Kill() // it may have ended
			_ = a.cmd.Wait()
		}
		if t.Failed() {
			t.Log(a.log.String())
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	return a
}

func (a *agentProc) socket() string { return filepath.Join(a.dir, "sock") }

func (a *agentProc) start() {
	a.t.Helper()
	path, err := binary()
	require.NoError(a.t, err)
	_ = os.Remove(a.socket())
	a.cmd = exec.Command(path, "agent", "--socket", a.socket(), "--arena-dir", filepath.Join(a.dir, "arena"), "--arena-memory", a.memory, "--grace", a.grace,
		"--endpoint", a.c.Endpoint(), "--certs", a.c.Certs(), "--identity", "admin", "--mode", a.c.Mode())
	a.cmd.Stderr = &a.log
	require.NoError(a.t, a.cmd.Start())
	require.Eventually(a.t, func() bool { _, err := os.Stat(a.socket()); return err == nil }, time.Minute, 10*time.Millisecond)
}

// end sends a signal and returns the exit code.
func (a *agentProc) end(sig syscall.Signal) int {
	a.t.Helper()
	require.NoError(a.t, a.cmd.Process.Signal(sig))
	_ = a.cmd.Wait() // the code says it
	code := a.cmd.ProcessState.ExitCode()
	a.cmd = nil
	return code
}

// run runs a command of the tree and returns its output and exit code.
func (a *agentProc) run(args ...string) (string, int) {
	a.t.Helper()
	return a.runAs("one", args...)
}

// runAs is run as part of a launch.
func (a *agentProc) runAs(launch string, args ...string) (string, int) {
	a.t.Helper()
	return a.runIn([]string{"MORAINE_LAUNCH=" + launch}, args...)
}

// runIn is run with variables of the environment.
func (a *agentProc) runIn(env []string, args ...string) (string, int) {
	a.t.Helper()
	path, err := binary()
	require.NoError(a.t, err)
	cmd := exec.Command(path, append(args, "--endpoint", a.c.Endpoint(), "--certs", a.c.Certs(), "--identity", "admin", "--mode", a.c.Mode())...)
	cmd.Env = append(os.Environ(), env...)
	out, _ := cmd.CombinedOutput() // the code says it
	return string(out), cmd.ProcessState.ExitCode()
}

// save saves a file as one rank's part by a process that ends when the agent has it.
func (a *agentProc) save(step, rank, world int) (string, int) {
	a.t.Helper()
	file := filepath.Join(a.t.TempDir(), fmt.Sprintf("state-%d", rank))
	require.NoError(a.t, os.WriteFile(file, bytes.Repeat([]byte{byte(step), byte(rank)}, 1<<20), 0o600))
	return a.run("ckpt", "save", "moraine:///runs/a", "--step", fmt.Sprint(step), "--rank", fmt.Sprint(rank), "--world", fmt.Sprint(world),
		"--agent", a.socket(), "--level", "local", file)
}

// committed lists the committed steps of the run.
func (a *agentProc) committed() map[uint64]bool {
	a.t.Helper()
	out, code := a.run("ckpt", "ls", "moraine:///runs/a", "--json")
	steps := map[uint64]bool{}
	if code != 0 {
		return steps // no step yet
	}
	for line := range bytes.Lines([]byte(out)) {
		var s struct{ Step uint64 }
		require.NoError(a.t, json.Unmarshal(line, &s), out)
		steps[s.Step] = true
	}
	return steps
}

// TestTheAgentOutlivesItsTrainers: parts whose trainer processes have ended are in committed
// steps, though the agent is killed meanwhile. SIGTERM writes what is sealed, and says by its exit
// code whether that was all.
func TestTheAgentOutlivesItsTrainers(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	a := newAgentProc(t, c)
	out, code := a.save(1, 0, 1)
	require.Equal(t, 1, code)
	require.Contains(t, out, "moraine agent", "the error says how to start one")
	a.start()

	out, code = a.save(1, 0, 1)
	require.Equal(t, 0, code, out)
	out, code = a.run("ckpt", "push", "--agent", a.socket(), "--deadline", "1m")
	require.Equal(t, 0, code, out)
	require.Contains(t, a.committed(), uint64(1))
	out, code = a.run("ckpt", "push", "--agent", a.socket(), "--level", "object", "--deadline", "20s")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "no chunkserver has a bucket")

	out, code = a.save(2, 0, 2) // rank 1 is not there yet
	require.Equal(t, 0, code, out)
	out, code = a.run("ckpt", "push", "--agent", a.socket(), "--deadline", "1s")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "no committed step")
	out, code = a.run("ckpt", "push", "--agent", a.socket(), "--run", "moraine:///runs/a", "--deadline", "1s")
	require.Equal(t, 1, code, out)
	env := []string{"MORAINE_AGENT=" + a.socket()}
	out, code = a.runIn(env, "ckpt", "push", "--run", "moraine:///runs/a/", "--deadline", "1s")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "no committed step")
	out, code = a.runIn(env, "ckpt", "push", "--run", "moraine:///runs/other", "--deadline", "1s")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "moraine agent status lists the runs")
	out, code = a.runIn(env, "agent", "status")
	require.Equal(t, 0, code, out)
	require.Contains(t, out, "/runs/a")
	a.end(syscall.SIGKILL)
	a.start()
	out, code = a.save(2, 1, 2)
	require.Equal(t, 0, code, out)
	require.Eventually(t, func() bool { return a.committed()[2] }, time.Minute, 100*time.Millisecond)

	out, code = a.save(3, 0, 1)
	require.Equal(t, 0, code, out)
	require.Equal(t, 0, a.end(syscall.SIGTERM), "everything is written before the agent ends")
	require.Contains(t, a.committed(), uint64(3))
	dir := t.TempDir()
	out, code = a.run("ckpt", "restore", "moraine:///runs/a", "--step", "3", dir)
	require.Equal(t, 0, code, out)
	files, err := filepath.Glob(filepath.Join(dir, "*state-0*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	got, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{3, 0}, 1<<20), got)
}

// TestPython runs the tests of the Python package against an agent and a cluster.
func TestPython(t *testing.T) {
	t.Parallel()
	python, err := filepath.Abs(filepath.Join(pythonEnv, "python"))
	require.NoError(t, err)
	require.FileExists(t, python, "`make setup` makes it")
	a := newAgentProc(t, startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1}))
	a.start()
	for _, args := range [][]string{{"mkdir", "moraine:///in-memory"}, {"ckpt", "policy", "moraine:///in-memory", "--level", "nvme", "--every", "10"}} {
		out, code := a.run(args...)
		require.Equal(t, 0, code, out)
	}
	cmd := exec.CommandContext(t.Context(), python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
	cmd.Dir = "../python/tests" // not beside the source of the package: it must be the installed one
	cmd.Env = append(os.Environ(), "MORAINE_AGENT="+a.socket(), "PYTHONPATH="+installed(t, python), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), " passed")
}

// TestAPythonJobOutlivesItsAgent: the agent is killed while a Python program waits for a step, and is started again.
// The wait goes on, and the program also learns how steps ended that the next agent does not know. A step that was
// adopted from files is not read as one without tensors.
func TestAPythonJobOutlivesItsAgent(t *testing.T) {
	t.Parallel()
	python, err := filepath.Abs(filepath.Join(pythonEnv, "python"))
	require.NoError(t, err)
	require.FileExists(t, python, "`make setup` makes it")
	a := newAgentProc(t, startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1}))
	a.start()
	iter := filepath.Join(t.TempDir(), "iter_0000005")
	require.NoError(t, os.MkdirAll(filepath.Join(iter, "mp_rank_00"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(iter, "mp_rank_00", "model_optim_rng.pt"), []byte("weights"), 0o600))
	for _, args := range [][]string{{"mkdir", "moraine:///megatron"}, {"cp", "-r", iter, "moraine:///megatron/iter_0000005"},
		{"ckpt", "adopt", "moraine:///megatron/iter_0000005", "--run", "moraine:///runs/adopted", "--step", "5", "--format", "megatron", "--complete"}} {
		out, code := a.run(args...)
		require.Equal(t, 0, code, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/python_restart.py", "/runs/restart")
	cmd.Env = append(os.Environ(), "MORAINE_AGENT="+a.socket(), "PYTHONPATH="+installed(t, python), "PYTHONDONTWRITEBYTECODE=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	meet := func(where string) {
		t.Helper()
		if !lines.Scan() {
			_ = cmd.Wait() // its standard error says why
			t.Fatal(trace.String())
		}
		require.Equal(t, where, lines.Text())
	}
	goOn := func() {
		_, err := io.WriteString(in, "go on\n")
		require.NoError(t, err)
	}
	meet("waiting")
	a.end(syscall.SIGKILL)
	goOn()
	meet("alone")
	a.start()
	goOn()
	meet("done")
	require.NoError(t, cmd.Wait(), trace.String())
}

// installed installs the Python package as `pip install ./python` does, and returns where.
func installed(t *testing.T, python string) string {
	t.Helper()
	source, target := filepath.Join(t.TempDir(), "python"), t.TempDir()
	require.NoError(t, os.CopyFS(source, os.DirFS("../python"))) // a build writes beside the source
	out, err := exec.CommandContext(t.Context(), python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
		"--no-deps", "--no-build-isolation", "--target", target, source).CombinedOutput()
	require.NoError(t, err, string(out))
	return target
}
