package histories_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/netns"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// spaces is three metadata servers, each a process on a host of its own in a
// network that this process is joined to. Everything is removed with the test.
type spaces struct {
	t      *testing.T
	net    *netns.Net
	dir    string
	binary string
	procs  map[string]*exec.Cmd
}

// newSpaces makes the network; it skips the test if that is not permitted.
func newSpaces(t *testing.T) *spaces {
	t.Helper()
	s := &spaces{t: t, dir: t.TempDir(), procs: map[string]*exec.Cmd{}}
	var err error
	if s.net, err = netns.New(servers...); errors.Is(err, netns.ErrCannot) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		for m := range s.procs {
			s.end(m, syscall.SIGKILL)
		}
		require.NoError(t, s.net.Close())
	})
	return s
}

func (s *spaces) address(m string) string { return s.net.IP(m) + ":7420" }

// start starts a server in its namespace.
func (s *spaces) start(m string) error {
	if s.procs[m] != nil {
		return nil
	}
	var peers []string
	for _, p := range servers {
		peers = append(peers, p+"="+s.address(p))
	}
	args := append(s.net.Command(m), s.binary, "metadata", "--id", m, "--listen", s.address(m), "--admin-listen", "127.0.0.1:7421",
		"--certs", filepath.Join(s.dir, "certs"), "--identity", m, "--mode", "crc", "--data", filepath.Join(s.dir, m),
		"--peers", strings.Join(peers, ","), "--log-stall", "15s", "--session-timeout", "3s", "--bootstrap")
	cmd := exec.Command(args[0], args[1:]...)
	log, err := os.OpenFile(filepath.Join(s.dir, m+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.procs[m] = cmd
	return nil
}

func (s *spaces) end(m string, sig syscall.Signal) {
	if cmd := s.procs[m]; cmd != nil {
		_ = cmd.Process.Signal(sig)
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Wait() // by a signal, which is an error
		delete(s.procs, m)
	}
}

// fault injects one fault into a server. It returns a description and a function
// that ends it.
func (s *spaces) fault(rng *rand.Rand, m string) (what string, mend func() error, err error) {
	switch rng.IntN(5) {
	case 0: // unreachable for all
		return "veth down", func() error { return s.net.Up(m) }, s.net.Down(m)
	case 1: // the other servers do not receive its messages, but it receives theirs; this process does too
		return "not received by the others", func() error { return s.net.Unmute(m) }, s.net.Mute(m)
	case 2:
		return "stopped", func() error { return s.procs[m].Process.Signal(syscall.SIGCONT) }, s.procs[m].Process.Signal(syscall.SIGSTOP)
	case 3:
		s.end(m, syscall.SIGKILL)
		return "killed", func() error { return s.start(m) }, nil
	}
	s.end(m, syscall.SIGTERM)
	return "ended", func() error { return s.start(m) }, nil
}

// victim is the current leader half the time, and otherwise any server. It reports
// whether that one led at the last check.
func (s *spaces) victim(ctx context.Context, rng *rand.Rand, pool *transport.Pool) (m string, led bool) {
	leader, m := s.leader(ctx, pool), servers[rng.IntN(len(servers))]
	if leader != "" && rng.IntN(2) == 0 {
		m = leader
	}
	return m, m == leader
}

// leader returns the server that reports that it leads and serves, of the latest
// term; "" if none does.
func (s *spaces) leader(ctx context.Context, pool *transport.Pool) (leader string) {
	var term uint64
	for _, m := range servers {
		asking, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		resp, err := pool.Metadata([]string{s.address(m)}).Do(asking, &wire.MetaRequest{Op: &wire.MetaRequest_GetLeader{GetLeader: &wire.GetLeader{}}})
		cancel()
		if l := resp.GetLeader(); err == nil && l.GetServing() && l.GetTerm() > term {
			leader, term = m, l.GetTerm()
		}
	}
	return leader
}

// faultCount is how often a fault was injected, and how often its victim led.
type faultCount struct{ all, led int }

// connect opens a client, as an identity of the cluster.
func (s *spaces) connect(identity string, cached bool) (*client.Client, *transport.Pool) {
	s.t.Helper()
	id, err := pki.LoadIdentity(pki.FilesIn(filepath.Join(s.dir, "certs"), identity))
	require.NoError(s.t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: "crc"}, transport.PoolDeps{Identity: id})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { pool.Close() })
	cfg := clientConfig(cached)
	for _, m := range servers {
		cfg.Metadata = append(cfg.Metadata, []string{s.address(m)})
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, cfg, client.Deps{Dialer: pool})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c, pool
}

// register registers three devices, as their chunkservers would.
func (s *spaces) register() (devices []uint32) {
	for i := range 3 {
		node := fmt.Sprint("n", i+1)
		c, _ := s.connect(node, false)
		resp, err := rawclient.Of(c).Meta(s.t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
			Host: &wire.Host{Id: node, Addresses: []string{"127.0.0.1:1"}, Devices: []*wire.Device{{Uuid: fmt.Appendf(nil, "device of %-6s", node), Capacity: 1 << 40}}}}}})
		require.NoError(s.t, err)
		devices = append(devices, resp.GetRegisterHost().GetDevices()[0].GetId())
	}
	return devices
}

// TestProcessesAreLinearizable runs a history on real processes, with real signals
// and a real network.
func TestProcessesAreLinearizable(t *testing.T) {
	s := newSpaces(t)
	lasts := testseed.Of(6*time.Second, 5*time.Minute)
	s.binary = filepath.Join(s.dir, "moraine")
	require.NoError(t, devcluster.Build(t.Context(), s.binary))
	require.NoError(t, devcluster.MakeCertificates(filepath.Join(s.dir, "certs"), 3, 3))
	for _, m := range servers {
		require.NoError(t, s.start(m))
	}
	defer func() {
		for _, m := range servers {
			if log, err := os.ReadFile(filepath.Join(s.dir, m+".log")); err == nil && t.Failed() {
				t.Logf("%s:\n%s", m, log[max(0, len(log)-3000):])
			}
		}
	}()
	devices := s.register()
	seed := testseed.First(t)
	rng := rand.New(rand.NewPCG(seed, 3))
	h := &history{}
	var workers []*worker
	var pool *transport.Pool
	for i := range 8 {
		var c *client.Client
		c, pool = s.connect("admin", i < 4)
		w := &worker{h: h, id: i, rng: rand.New(rand.NewPCG(seed, uint64(100+i))), meta: rawclient.Of(c), jobs: c, devices: devices}
		if i < 4 {
			w.cache = c
		}
		workers = append(workers, w)
	}
	require.NoError(t, makeArenas(t.Context(), h, workers[0].meta, 1+int(lasts/(4*time.Second))))
	working, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.run(working) })
	}
	var did []string
	met := map[string]faultCount{}
	for working.Err() == nil {
		m, led := s.victim(working, rng, pool)
		what, mend, err := s.fault(rng, m)
		did = append(did, fmt.Sprintf("%s %s, led %v", m, what, led))
		require.NoError(t, err, what)
		n := met[what]
		if n.all++; led {
			n.led++
		}
		met[what] = n
		time.Sleep(time.Duration(300+rng.IntN(2200)) * time.Millisecond)
		require.NoError(t, mend(), what)
		time.Sleep(time.Duration(200+rng.IntN(1200)) * time.Millisecond)
	}
	wg.Wait()
	out := outcome{h: h}
	for _, w := range workers {
		for _, p := range h.arenas {
			w.lookAround(p)
		}
		out.ops, out.unknown = out.ops+w.done, out.unknown+w.unknown
		if w.cache != nil {
			out.hits += w.cache.Stats().CacheHits
		}
	}
	r, at := h.verdict()
	if r == porcupine.Illegal {
		t.Fatalf("seed %d, arena %d: no order explains the answers; what went wrong: %v; see %s", seed, at, did, h.show(t, at))
	}
	require.Equal(t, porcupine.Ok, r)
	t.Logf("seed %d: %d operations, %d answers from caches, %d of unknown outcome, 0 violations; faults, and how many met a leader: %+v; %v", seed, out.ops, out.hits, out.unknown, met, did)
}
