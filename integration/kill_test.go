package integration_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/stretchr/testify/require"
)

// TestKillAnyProcessWhileWriting kills one process with SIGKILL at any moment while
// a file is written as by `bench write`: a metadata server, a chunkserver, or the
// writer. Acknowledged files are there, byte for byte. Unacknowledged ones are
// there whole or not at all.
func TestKillAnyProcessWhileWriting(t *testing.T) {
	t.Parallel()
	s := seed(t)
	rng := random(s)
	c := startProcs(t, devcluster.Config{MetadataArgs: []string{"--grace", "5s"}})
	cl := connect(t, c, client.Config{})
	kills := map[string]int{}
	acked := 0
	written, there := map[string]bench.Work{}, map[string]bool{}
	n := rounds(4, 100)
	for round := range n {
		w := bench.Work{Op: bench.OpWrite, Path: fmt.Sprintf("/round-%03d", round), Bytes: rng.Int64N(96<<20) + 1}
		written[w.Path] = w
		victim := killRound(t, c, rng, w, &acked)
		kills[victim]++
		if checkFile(t, cl, w) {
			there[w.Path] = true
		}
	}
	t.Logf("seed %d: %d rounds, killed %v; %d writes acknowledged, %d files there", s, n, kills, acked, len(there))
	require.LessOrEqual(t, acked, len(there))
	// Check all of them again: a later round must not have damaged an earlier one.
	// A killed writer may have committed after the check.
	for e, err := range cl.ReadDir(t.Context(), "/") {
		require.NoError(t, err)
		w, ok := written["/"+e.Name]
		require.True(t, ok, e.Name)
		require.True(t, checkFile(t, cl, w), w.Path)
		delete(there, w.Path)
	}
	require.Empty(t, there, "they were there after their rounds")
}

// killRound writes one file and kills one process meanwhile; it returns which.
func killRound(t *testing.T, c *devcluster.Cluster, rng *rand.Rand, w bench.Work, acked *int) string {
	t.Helper()
	writer := startWriter(t, c, w)
	nodes := c.All()
	pick := rng.IntN(len(nodes) + 1)
	delay := time.Duration(rng.Int64N(int64(400 * time.Millisecond)))
	writer.begin(t)
	time.Sleep(delay)
	victim := "writer"
	if pick < len(nodes) {
		victim = nodes[pick].Name
		require.NoError(t, nodes[pick].Kill())
	} else {
		require.NoError(t, writer.cmd.Process.Kill())
	}
	result, ok := writer.result()
	if pick < len(nodes) {
		require.True(t, ok, "the writer was lost: %s", writer.stderr.String())
		require.Empty(t, result.Error, "with %s killed after %v", victim, delay)
		require.NoError(t, nodes[pick].Start())
		require.NoError(t, nodes[pick].Ready(t.Context()))
	}
	if ok && result.Error == "" {
		*acked++
		requireThere(t, c, w)
	}
	return victim
}

// requireThere fails if an acknowledged file is missing.
func requireThere(t *testing.T, c *devcluster.Cluster, w bench.Work) {
	t.Helper()
	_, err := connect(t, c, client.Config{}).Stat(t.Context(), w.Path)
	require.NoError(t, err, "%s was acknowledged", w.Path)
}

// checkFile reads a whole file and compares it with the written bytes; false means
// that it is missing.
func checkFile(t *testing.T, cl *client.Client, w bench.Work) bool {
	t.Helper()
	r, err := cl.OpenFile(t.Context(), w.Path)
	if errors.Is(err, moraine.NotFound) {
		return false
	}
	require.NoError(t, err)
	defer r.Close()
	require.Equal(t, w.Bytes, r.Size(), w.Path)
	want := make([]byte, w.Period())
	w.Source(want)
	got := make([]byte, 8<<20)
	for off := int64(0); off < r.Size(); {
		n := min(int64(len(got)), r.Size()-off)
		require.NoError(t, r.ReadRange(t.Context(), got[:n], off), "%s at %d", w.Path, off)
		require.True(t, bytes.Equal(want[off:off+n], got[:n]), "%s: wrong bytes at %d", w.Path, off)
		off += n
	}
	return true
}

// writer is a worker process of the benchmark.
type writer struct {
	cmd    *exec.Cmd
	start  io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

func startWriter(t *testing.T, c *devcluster.Cluster, work bench.Work) *writer {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	spec, err := json.Marshal(work)
	require.NoError(t, err)
	w := &writer{cmd: exec.CommandContext(t.Context(), path, "bench", "worker", "--endpoint", c.Endpoint(), "--certs", c.Certs(),
		"--identity", "client", "--mode", c.Mode(), "--log-level", "error", "--work", string(spec))}
	w.cmd.Stderr = &w.stderr
	w.start, err = w.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	w.out = bufio.NewReader(out)
	require.NoError(t, w.cmd.Start())
	_, err = w.out.ReadString('\n')
	require.NoError(t, err, "%s", &w.stderr)
	return w
}

func (w *writer) begin(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(w.start, "go\n")
	require.NoError(t, err)
}

// result returns the writer's result at its end; false if it was killed before.
func (w *writer) result() (bench.Result, bool) {
	var r bench.Result
	err := json.NewDecoder(w.out).Decode(&r)
	_ = w.cmd.Wait() // the result has its output
	return r, err == nil
}
