package integration_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/stretchr/testify/require"
)

// Every benchmark runs to its end on a cluster of its own. It prints its lines with
// a value, a limit of the same run and their ratio. The test does not judge how
// large they are. Only the long form runs it.
func TestBenchmarksRun(t *testing.T) {
	testseed.OnlyLong(t)
	want := map[string]string{
		"write":    "write write-metadata-commands write-rss loopback-put write-memory write-memory-acknowledged write-memory-durable",
		"read":     "read loopback-get read-memory rand64k-memory rand4k-memory read-hedged read-hedges read-hedges-won read-degraded",
		"meta":     "raft create stat stat-requests readdir readdir-requests rename unlink commit small-file",
		"failover": "create-under-load elections-under-load silences-under-load ended-under-load failover-median failover-worst failover-leases-median failover-leases-worst failover-stop-median failover-stop-worst failover-stop-leases-median failover-stop-leases-worst",
		"s3":       "s3-write s3-write-metadata-commands s3-read",
		"flush":    "flush",
		"stage":    "stage",
		"rebuild": `rebuild rebuild-bytes rebuild-time rebuild-silent
			rebuild-silent-read-p50 rebuild-silent-read-p99 rebuild-silent-write-p50 rebuild-silent-write-p99
			rebuild-read-p50 rebuild-read-p99 rebuild-write-p50 rebuild-write-p99`,
	}
	bin, err := binary()
	require.NoError(t, err)
	for name, lines := range want {
		t.Run(name, func(t *testing.T) {
			names := runBenchmark(t, bin, name, "--bytes", "96MiB")
			require.Equal(t, strings.Fields(lines), names)
		})
	}
}

// The benchmark of checkpoints runs to its end: saves to each level, restores from each, restores by
// other numbers of ranks, and a training loop, also with the agent's rate limit. It
// fails by itself if a restored byte differs, or comes from another level than the line says. A row
// of saves reports what its processes have. Only the long form runs it.
func TestBenchmarkOfCheckpoints(t *testing.T) {
	testseed.OnlyLong(t)
	bin, err := binary()
	require.NoError(t, err)
	want := strings.Fields(`ckpt-stall ckpt-stall-time ckpt-memory ckpt-nvme ckpt-object
		ckpt-restore-arena ckpt-restore-memory ckpt-restore-memory-hits ckpt-restore-nvme ckpt-restore-object
		ckpt-reshard-4-2 ckpt-reshard-2-3 ckpt-reshard-3-8
		ckpt-train ckpt-train-flush ckpt-train-paced ckpt-train-paced-flush`)
	require.Equal(t, want, runBenchmark(t, bin, "ckpt", "--size", "96MiB"))

	names := runBenchmark(t, bin, "ckpt", "--size", "8MiB", "--repeat", "20")
	require.Equal(t, "ckpt-row", names[0])
	for _, part := range []string{"trainers", "agent", "servers"} {
		for _, at := range []string{"middle", "end", "second-half"} {
			require.Contains(t, names, "ckpt-row-"+part+"-rss-"+at)
			require.Contains(t, names, "ckpt-row-"+part+"-descriptors-"+at)
		}
	}
	for _, name := range []string{"ckpt-row-trainers-shm-end", "ckpt-row-agent-shm-end"} {
		require.Contains(t, names, name)
	}
}

// In the second half of a row of saves no process takes more memory or descriptors: each removed
// step gives back what it had, in the trainers, in the agent and in all servers. Only the long form
// runs it.
func TestARowOfSavesIsFlat(t *testing.T) {
	testseed.OnlyLong(t)
	bin, err := binary()
	require.NoError(t, err)
	// Metadata servers let garbage grow to 256 MiB unless GOGC is set: that takes longer than this row.
	t.Setenv("GOGC", "100")
	compared := 0
	for _, l := range benchmarkLines(t, bin, "ckpt", "--size", "8MiB", "--repeat", "240") {
		if !strings.HasSuffix(l.Name, "-second-half") {
			continue
		}
		compared++
		// Connections come and go, and a process has 20 descriptors at least.
		require.LessOrEqual(t, l.Value, 1.2*l.Limit+10, l.Name)
	}
	require.GreaterOrEqual(t, compared, 8)
}

// Stock PyTorch saves and restores the same state in each way; the benchmark fails by itself if a
// restored byte differs. Only the long form runs it.
func TestBenchmarkOfPyTorch(t *testing.T) {
	testseed.OnlyLong(t)
	bin, err := binary()
	require.NoError(t, err)
	python, err := exec.Command("../internal/tools/torch.sh").Output()
	require.NoError(t, err)
	ours, err := filepath.Abs("../python")
	require.NoError(t, err)
	t.Setenv("PYTHONPATH", ours)
	var want []string
	for _, way := range strings.Fields("save-disk dcp-disk dcp-async-disk dcp-mount dcp-async-mount moraine") {
		for _, what := range strings.Fields("stall durable-time durable restore") {
			want = append(want, "torch-"+way+"-"+what)
		}
	}
	require.Equal(t, append(want, "torch-moraine-restore-arena"),
		runBenchmark(t, bin, "torch", "--size", "48MiB", "--rounds", "1", "--python", strings.TrimSpace(string(python))))
}

// Without PyTorch, `bench torch` says how to make a Python that has it, before it starts anything.
func TestBenchmarkOfPyTorchSaysHowToGetIt(t *testing.T) {
	t.Parallel()
	bin, err := binary()
	require.NoError(t, err)
	python := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(python, []byte("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n"), 0o755))
	said, err := exec.Command(bin, "bench", "torch", "--python", python).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), `PYTHONPATH=python moraine bench torch --python "$(internal/tools/torch.sh)"`)
	require.Contains(t, string(said), "No module named 'torch'")
	require.NotContains(t, string(said), "...\n", "nothing was started")
}

// A rebuild with another scheme than the usual one, with the chunkservers that it
// needs.
func TestBenchmarkOfARebuildByScheme(t *testing.T) {
	testseed.OnlyLong(t)
	bin, err := binary()
	require.NoError(t, err)
	require.Contains(t, runBenchmark(t, bin, "rebuild", "--bytes", "64MiB", "--scheme", "2+1"), "rebuild-time")
	for _, scheme := range []string{"4+0", "x1", "five"} {
		said, err := exec.Command(bin, "bench", "rebuild", "--bytes", "64MiB", "--scheme", scheme).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(said), "--scheme")
	}
}

// noneOf are lines whose expected value is zero.
var noneOf = map[string]bool{"elections-under-load": true, "silences-under-load": true, "ended-under-load": true}

// runBenchmark runs a benchmark with small numbers, checks its output, and returns
// the names of its lines.
func runBenchmark(t *testing.T, bin, name string, args ...string) (names []string) {
	for _, l := range benchmarkLines(t, bin, name, args...) {
		names = append(names, l.Name)
	}
	return names
}

// benchmarkLines is runBenchmark, and returns the lines.
func benchmarkLines(t *testing.T, bin, name string, args ...string) (lines []bench.Line) {
	cmd := exec.Command(bin, append([]string{"bench", name, "--json", "--modes", "crc", "--seconds", "0.5", "--dir", t.TempDir()}, args...)...)
	// Other tests write to the same disk here: a stall is no failure of a
	// benchmark.
	cmd.Env = append(os.Environ(), "MORAINE_METADATA_LOG_STALL=15s")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var l bench.Line
		require.NoError(t, dec.Decode(&l))
		lines = append(lines, l)
		if !noneOf[l.Name] {
			require.Positive(t, l.Value, l.Name)
		}
		if l.LimitName != "" {
			require.Positive(t, l.Limit, l.Name)
			require.InDelta(t, l.Value/l.Limit, l.Ratio, 1e-9, l.Name)
		}
	}
	return lines
}

// A loaded state serves several benchmarks, and does not change: creates and stats
// on it, a mount that lists and removes its large directory, a follower that returns from the log, and one that returns from a
// snapshot. Each fails by itself if a file of the load is missing, or a follower
// returns in another way. Only the long form runs it.
func TestBenchmarksOfALargeState(t *testing.T) {
	testseed.OnlyLong(t)
	bin, err := binary()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "state")
	require.Equal(t, []string{"load"}, runBenchmark(t, bin, "load", "--state", dir, "--inodes", "3500", "--content-every", "2", "--large", "1500"))
	_, err = exec.Command(bin, "bench", "load", "--state", dir).Output()
	require.Error(t, err, "existing files are not overwritten")
	require.Equal(t, strings.Fields("scale-create scale-stat scale-inodes scale-disk scale-memory scale-memory-inode scale-snapshot scale-snapshot-bytes scale-restart"),
		runBenchmark(t, bin, "scale", "--state", dir, "--cache", "64MiB"))
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err == nil {
		require.NoError(t, f.Close())
		require.Equal(t, strings.Fields(`scale-mount-first scale-mount-ls scale-mount-ls-time scale-mount-ls-memory
			scale-mount-find scale-mount-find-time scale-mount-find-memory scale-mount-rm scale-mount-rm-time scale-mount-rm-memory
			scale-mount-inodes scale-mount-leader-memory`),
			runBenchmark(t, bin, "scale-mount", "--state", dir, "--cache", "64MiB"))
	}
	require.Equal(t, strings.Fields(`followers-calm-create followers-calm-p50 followers-calm-p99 followers-calm-worst
		followers-away-create followers-away-p50 followers-away-p99 followers-away-worst
		followers-log-create followers-log-p50 followers-log-p99 followers-log-worst followers-log followers-log-entries
		followers-snapshot-create followers-snapshot-p50 followers-snapshot-p99 followers-snapshot-worst followers-snapshot followers-snapshot-bytes`),
		runBenchmark(t, bin, "followers", "--state", dir, "--cache", "64MiB", "--down", "1s", "--rate", "100", "--clients", "8"))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 4, "the state, its certificates, what it holds, and its lock")
}
