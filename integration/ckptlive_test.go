package integration_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/devcluster"
)

// TestWatchAndDrillOfARun: `ckpt watch` prints a line for each change of a run, and `ckpt drill --every`
// restores each newer step and exports what it measured. A signal ends both without an error.
func TestWatchAndDrillOfARun(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	env := settingsFor(c)
	const run = "moraine:///runs/r"
	save := func(step string) {
		t.Helper()
		file, _ := tensorOf(t, rng)
		works(t, env, "ckpt", "save", run, "--step", step, file)
	}
	save("1")

	watch := command(t, env, "ckpt", "watch", run, "--json", "--every", "50ms")
	out, err := watch.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watch.Start())
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	type row struct {
		Step  uint64 `json:"step"`
		State string `json:"state"`
	}
	seen := func(step uint64) {
		t.Helper()
		for lines.Scan() {
			var state struct{ Steps []row }
			require.NoError(t, json.Unmarshal(lines.Bytes(), &state), lines.Text())
			if len(state.Steps) > 0 && state.Steps[0] == (row{step, "committed"}) {
				return
			}
		}
		t.Fatalf("the watch ended before step %d: %v", step, lines.Err())
	}
	seen(1)

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	drill := command(t, env, "ckpt", "drill", run, "--every", "100ms", "--metrics", address)
	require.NoError(t, drill.Start())
	metric := func(name string) (value float64) {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return 0 // it has not started
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				_, err := fmt.Sscan(rest, &value)
				require.NoError(t, err)
			}
		}
		return value
	}
	const restores, commit = `moraine_drill_restores_total{level="nvme"}`, `moraine_drill_last_commit_timestamp_seconds{level="nvme"}`
	require.Eventually(t, func() bool { return metric(restores) >= 2 }, time.Minute, 50*time.Millisecond)
	before := metric(commit)
	require.Positive(t, metric(`moraine_drill_restore_bytes{level="nvme"}`))
	save("2")
	seen(2)
	require.Eventually(t, func() bool { return metric(commit) > before }, time.Minute, 50*time.Millisecond, "the drill follows the newest step")
	for _, cmd := range []*exec.Cmd{watch, drill} {
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		if cmd == watch {
			for lines.Scan() { // what it printed before the signal
				continue
			}
		}
		require.NoError(t, cmd.Wait(), "its end by a signal is no failure")
	}
}

// TestTheSlurmJobIsPreempted: the trap of deploy/slurm/train.sbatch, with stand-ins for the two commands of
// Slurm: SIGTERM ends the trainers, their sealed parts get into a committed step, and the job is queued again.
func TestTheSlurmJobIsPreempted(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	a := newAgentProc(t, c)
	a.start()
	path, err := binary()
	require.NoError(t, err)
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	put("srun", "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec \"$@\"\n")
	put("scontrol", "#!/bin/bash\necho \"$@\" >>"+filepath.Join(dir, "scontrol.log")+"\n")
	put("python", "#!/bin/bash\nmoraine ckpt save moraine:///runs/s --step 1 --agent "+a.socket()+" --level local "+filepath.Join(dir, "state")+" || exit 1\ntouch "+filepath.Join(dir, "sealed")+"\nexec sleep 600\n")
	put("state", strings.Repeat("x", 1<<20))
	require.NoError(t, os.Symlink(path, filepath.Join(dir, "moraine")))
	text, err := os.ReadFile("../deploy/slurm/train.sbatch")
	require.NoError(t, err)
	const socket = "/run/moraine/moraine-job-$SLURM_JOB_ID.sock"
	require.Contains(t, string(text), socket)
	put("train.sbatch", strings.Replace(string(text), socket, a.socket(), 1))

	job := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "train.sbatch"))
	job.Env = append(append(os.Environ(), settingsFor(c)...), "MORAINE_LAUNCH=one", "SLURM_JOB_ID=77", "SLURM_JOB_NUM_NODES=1", "PATH="+dir+":"+os.Getenv("PATH"))
	var out strings.Builder
	job.Stdout, job.Stderr = &out, &out
	job.WaitDelay = 10 * time.Second
	require.NoError(t, job.Start())
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "sealed")); return err == nil }, time.Minute, 20*time.Millisecond)
	require.NoError(t, job.Process.Signal(syscall.SIGTERM))
	require.NoError(t, job.Wait(), out.String())
	require.Contains(t, out.String(), "every sealed part is in a committed step")
	log, err := os.ReadFile(filepath.Join(dir, "scontrol.log"))
	require.NoError(t, err)
	require.Equal(t, "requeue 77\n", string(log))
	require.Contains(t, works(t, settingsFor(c), "ckpt", "ls", "moraine:///runs/s", "--json"), `"step":1`)
}
