package integration_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
)

// cpuTime is the processor time that a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:])) // from the third on
	ticks := 0
	for _, f := range fields[11:13] { // user, system
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // the kernel reports 100 per second
}

// mostResident is the peak memory of a process.
func mostResident(t *testing.T, pid int) uint64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	t.Fatal("the kernel does not report it")
	return 0
}

// heldBack is how many requests a chunkserver has delayed for a limit.
func heldBack(t *testing.T, n *devcluster.Node, by string) float64 {
	t.Helper()
	for _, m := range scrape(t, n)["moraine_chunkserver_held_back_total"].GetMetric() {
		if len(m.Label) == 1 && m.Label[0].GetValue() == by {
			return m.GetCounter().GetValue()
		}
	}
	return 0
}

// requireHeldBack checks that a limit delayed requests, if the chunkserver did as
// much as the limit allows.
func requireHeldBack(t *testing.T, n *devcluster.Node, by string, full bool) {
	t.Helper()
	held := heldBack(t, n, by)
	t.Logf("%v requests were delayed by %s", held, by)
	if full {
		require.Positive(t, held, "no request was delayed, although it did all that it may")
	}
}

// readers read pieces of the given length, n concurrently, all over a file while fn
// runs. fn may read how many bytes have arrived so far.
func readers(t *testing.T, cl *client.Client, path string, n int, length int64, fn func(got *atomic.Int64)) {
	t.Helper()
	r, err := cl.OpenFile(t.Context(), path)
	require.NoError(t, err)
	defer r.Close()
	var got atomic.Int64
	var g sync.WaitGroup
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop); g.Wait() })
	defer end()
	errs := make([]error, n)
	for i := range n {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		g.Go(func() {
			p := make([]byte, length)
			for errs[i] == nil {
				select {
				case <-stop:
					return
				default:
				}
				if errs[i] = r.ReadRange(t.Context(), p, rng.Int64N(r.Size()/length)*length); errs[i] == nil {
					got.Add(length)
				}
			}
		})
	}
	fn(&got)
	end()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// TestChunkserverKeepsToItsLimits runs a chunkserver as beside trainers, with a
// limit of each kind, and requests more than that. The bytes that it sends in a
// period, the processor time that it uses in one, and its peak memory stay within
// the limits. They are limits, not expected figures: on a busy machine it does
// less. If it did as much as allowed, some requests were delayed.
func TestChunkserverKeepsToItsLimits(t *testing.T) {
	t.Parallel()
	const (
		cpus      = 0.1
		bandwidth = 24 << 20
		memory    = 64 << 20
		window    = 8 * time.Second
		burst     = 16 << 20 // what may be saved up
		// beside is what the process needs in addition to --memory.
		// docs/operations/capacity.md says a tenth of a GiB for each device; the
		// program itself adds to that.
		beside = 160 << 20
	)
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1,
		ChunkserverArgs: []string{"--cpus", fmt.Sprint(cpus), "--bandwidth-limit", fmt.Sprint(bandwidth), "--memory", fmt.Sprint(memory)}})
	n := c.Node("n1")
	cl := connect(t, c, client.Config{})
	f, err := cl.Create(t.Context(), "/file", client.CreateOptions{})
	require.NoError(t, err)
	piece := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(piece)
	for range 2 * memory / len(piece) {
		_, err = f.Write(piece)
		require.NoError(t, err)
	}
	_, err = f.Commit(t.Context())
	require.NoError(t, err)

	const many = 8
	full := false
	readers(t, cl, "/file", many, 1<<20, func(got *atomic.Int64) {
		began, before := time.Now(), got.Load()
		time.Sleep(window)
		sent := got.Load() - before
		took := time.Since(began)
		bound := int64(took.Seconds()*bandwidth) + burst + many<<20 // requests admitted before
		t.Logf("sent %d MiB in %v, where %d may be", sent>>20, took.Round(time.Millisecond), bound>>20)
		require.LessOrEqual(t, sent, bound)
		require.Positive(t, sent)
		full = sent >= int64(took.Seconds()*bandwidth)
	})
	requireHeldBack(t, n, "bandwidth", full)

	readers(t, cl, "/file", 32, 4<<10, func(got *atomic.Int64) {
		time.Sleep(time.Second)
		began, before := time.Now(), cpuTime(t, n.Pid())
		time.Sleep(window)
		used := cpuTime(t, n.Pid()) - before
		took := time.Since(began)
		// Besides requests the process has heartbeats, and the limits themselves.
		const unasked = 300 * time.Millisecond
		bound := time.Duration(float64(took)*cpus*5/4) + unasked
		t.Logf("used %v of a processor in %v, where %v may be; %d requests", used, took.Round(time.Millisecond), bound.Round(time.Millisecond), got.Load()>>12)
		require.LessOrEqual(t, used, bound)
		require.Positive(t, got.Load())
		full = used >= time.Duration(float64(took)*cpus)+unasked
	})
	requireHeldBack(t, n, "cpus", full)

	most := mostResident(t, n.Pid())
	t.Logf("had %d MiB of memory at most, of which --memory is %d", most>>20, memory>>20)
	require.LessOrEqual(t, most, uint64(memory+beside))
}

// moved is how many bytes of chunks and objects a chunkserver has received and sent.
func moved(t *testing.T, n *devcluster.Node) (bytes float64) {
	t.Helper()
	families := scrape(t, n)
	for _, name := range []string{"moraine_transport_received_bytes_total", "moraine_transport_sent_bytes_total"} {
		for _, m := range families[name].GetMetric() {
			for _, l := range m.Label {
				if l.GetName() == "class" && l.GetValue() == "bulk" {
					bytes += m.GetCounter().GetValue()
				}
			}
		}
	}
	for _, name := range []string{"moraine_object_received_bytes_total", "moraine_object_sent_bytes_total"} {
		for _, m := range families[name].GetMetric() {
			bytes += m.GetCounter().GetValue()
		}
	}
	return bytes
}

// TestFlushKeepsToTheLimits flushes more than the limits of a chunkserver allow in
// a period: the bytes that its mover reads from it, and sends to the bucket, stay
// within them too.
func TestFlushKeepsToTheLimits(t *testing.T) {
	t.Parallel()
	const (
		cpus      = 0.1
		bandwidth = 12 << 20
		size      = 160 << 20
		window    = 8 * time.Second
		// saved is what may be saved up. begun is what was allowed before and is
		// moved within the period: the mover requests a piece at a time, once to
		// get and once to send it.
		saved, begun = 16 << 20, 2 * 16 << 20
	)
	for name, args := range map[string][]string{
		"bandwidth": {"--bandwidth-limit", fmt.Sprint(bandwidth)},
		"cpus":      {"--cpus", fmt.Sprint(cpus)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true, ChunkserverArgs: args})
			n := c.Node("n1")
			cl := connect(t, c, client.Config{})
			f, err := cl.Create(t.Context(), "/file", client.CreateOptions{})
			require.NoError(t, err)
			piece := make([]byte, 1<<20)
			_, _ = rand.NewChaCha8([32]byte{2}).Read(piece)
			for range size / len(piece) {
				_, err = f.Write(piece)
				require.NoError(t, err)
			}
			_, err = f.Commit(t.Context())
			require.NoError(t, err)

			began, bytes, used := time.Now(), moved(t, n), cpuTime(t, n.Pid())
			flush := command(t, settingsFor(c), "flush", "--wait", "moraine:///")
			require.NoError(t, flush.Start())
			time.Sleep(window)
			bytes, used = moved(t, n)-bytes, cpuTime(t, n.Pid())-used
			took := time.Since(began)
			require.NoError(t, flush.Process.Kill())
			_ = flush.Wait()
			t.Logf("moved %.0f MiB with %v of a processor in %v", bytes/(1<<20), used, took.Round(time.Millisecond))
			require.Positive(t, bytes)
			if name == "bandwidth" {
				require.LessOrEqual(t, bytes, took.Seconds()*bandwidth+saved+begun)
				requireHeldBack(t, n, "bandwidth", bytes >= took.Seconds()*bandwidth)
				return
			}
			const unasked = 500 * time.Millisecond // and a piece that was begun
			require.LessOrEqual(t, used, time.Duration(float64(took)*cpus*5/4)+unasked)
			requireHeldBack(t, n, "cpus", used >= time.Duration(float64(took)*cpus)+unasked)
		})
	}
}
