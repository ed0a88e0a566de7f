package histories_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/clock/clocktest"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/memnet"
)

// nemesis injects every fault that a cluster must survive, one after the other, and
// ends it again.
type nemesis struct {
	rng     *rand.Rand
	c       *incluster.Cluster
	clients []string
	hangs   bool // disks hang
	deposes bool // only leaders that do not notice that they are deposed
	cuts    bool // only disconnected clients
	disks   stall
	clocks  clocks
	naps    []*incluster.Nap // of the clients
	wakes   []func()         // end the sleeps
	cached  bool             // some clients have caches
	did     []string
}

// servers of a history.
var servers = []string{"m1", "m2", "m3"}

// run continues until ctx ends, and leaves everything whole.
func (n *nemesis) run(ctx context.Context) error {
	faults := []func(victim string) error{n.isolate, n.split, n.oneWay, n.kill, n.powerCut, n.setClocks, n.loseMessages, n.handOver}
	if n.hangs {
		faults = append(faults, n.hang, n.splitHung, n.splitHung)
	}
	if n.cached {
		faults = append(faults, n.sleepClient, n.sleepClient, n.suspend, n.cutClient)
	}
	if n.deposes {
		faults = []func(victim string) error{n.splitHung}
	}
	longest := 4 * time.Second
	if n.cuts {
		faults, longest = []func(victim string) error{n.cutClient}, 8*time.Second
	}
	for ctx.Err() == nil {
		victim := n.c.Leader()
		if victim == "" || !n.deposes && n.rng.IntN(3) == 0 {
			victim = servers[n.rng.IntN(len(servers))]
		}
		if err := faults[n.rng.IntN(len(faults))](victim); err != nil {
			return err
		}
		n.wait(ctx, 300*time.Millisecond, longest)
		if err := n.heal(); err != nil {
			return err
		}
		n.wait(ctx, 100*time.Millisecond, 1200*time.Millisecond)
	}
	return n.heal()
}

func (n *nemesis) wait(ctx context.Context, least, most time.Duration) {
	select {
	case <-time.After(least + time.Duration(n.rng.Int64N(int64(most-least)))):
	case <-ctx.Done():
	}
}

func (n *nemesis) note(format string, args ...any) {
	n.did = append(n.did, fmt.Sprintf(format, args...))
}

// heal ends every fault, and restarts servers that are down.
func (n *nemesis) heal() error {
	n.wake()
	n.disks.release()
	n.c.Net.Heal()
	n.c.Net.SetFaults("*", "*", memnet.Faults{MaxDelay: 2 * time.Millisecond})
	return n.c.Restart()
}

// isolate disconnects a server.
func (n *nemesis) isolate(victim string) error {
	n.note("isolate %s", victim)
	n.c.Net.Isolate(victim)
	return nil
}

// split disconnects a server from the others; some clients reach only it, some all
// others.
func (n *nemesis) split(victim string) error {
	n.note("split %s", victim)
	for _, s := range servers {
		if s != victim {
			n.c.Net.Partition(victim, s)
		}
	}
	for _, c := range n.clients {
		switch n.rng.IntN(3) {
		case 0:
			n.c.Net.Partition(c, victim)
		case 1:
			for _, s := range servers {
				if s != victim {
					n.c.Net.Partition(c, s)
				}
			}
		}
	}
	return nil
}

// splitHung is a split whose victim, if it leads, cannot step down: stepping down
// waits for its disk, as in a stopped process. The rest of the server continues,
// and answers its callers.
func (n *nemesis) splitHung(victim string) error {
	n.note("hang, then")
	n.disks.hold(victim)
	time.Sleep(100 * time.Millisecond)
	return n.split(victim)
}

// oneWay makes a server unable to send, or unable to receive.
func (n *nemesis) oneWay(victim string) error {
	deaf := n.rng.IntN(2) == 0
	n.note("one way %s, deaf %v", victim, deaf)
	for _, s := range servers {
		switch {
		case s == victim:
		case deaf:
			n.c.Net.Cut(s, victim)
		default:
			n.c.Net.Cut(victim, s)
		}
	}
	return nil
}

func (n *nemesis) kill(victim string) error {
	n.note("kill %s", victim)
	n.c.Kill(victim)
	return nil
}

func (n *nemesis) powerCut(victim string) error {
	n.note("power of %s", victim)
	n.c.PowerCut(victim)
	return nil
}

// hang stops a server's disk.
func (n *nemesis) hang(victim string) error {
	n.note("hang %s", victim)
	n.disks.hold(victim)
	return nil
}

// setClocks sets the wall clocks of all machines, each by another amount.
func (n *nemesis) setClocks(string) error {
	n.note("clocks")
	for _, s := range append(slices.Clone(servers), n.clients...) {
		n.clocks.set(s, time.Duration(n.rng.IntN(7200)-3600)*time.Second)
	}
	return nil
}

// loseMessages loses requests and replies of clients and of servers.
func (n *nemesis) loseMessages(string) error {
	n.note("lose messages")
	n.c.Net.SetFaults("*", "*", memnet.Faults{MaxDelay: 20 * time.Millisecond, LoseRequest: 0.1, LoseReply: 0.2})
	return nil
}

// handOver ends a server with a signal, so that it hands over.
func (n *nemesis) handOver(victim string) error {
	n.note("restart %s", victim)
	n.c.StopNode(victim)
	return nil
}

// stall blocks the appends to the logs of servers whose disks hang. Nothing else is
// blocked: a wait for a mutex would stop the clock of the bubble. For the same
// reason such a history takes no snapshot and truncates no log.
type stall struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// rule is incluster.Options.Rule.
func (s *stall) rule(node string, op vfs.Op) error {
	s.mu.Lock()
	wait := s.held[node]
	s.mu.Unlock()
	if wait != nil && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync) && strings.HasSuffix(op.Path, ".wal") {
		<-wait
	}
	return nil
}

func (s *stall) hold(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[string]chan struct{}{}
	}
	if s.held[node] == nil {
		s.held[node] = make(chan struct{})
	}
}

func (s *stall) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, wait := range s.held {
		close(wait)
		delete(s.held, node)
	}
}

// clocks are those of machines, whose wall clocks can be set.
type clocks struct {
	worse map[string]*wallClock
	own   map[string]*clocktest.Hands
}

// newClocks makes the clocks of a history. If some clients have caches they are
// like those of real machines, by whose monotonic readings leases expire. Otherwise
// the servers' clocks are worse.
func newClocks(cached bool) clocks {
	c := clocks{worse: map[string]*wallClock{}, own: map[string]*clocktest.Hands{}}
	for _, s := range servers {
		if cached {
			c.own[s] = &clocktest.Hands{}
		} else {
			c.worse[s] = &wallClock{}
		}
	}
	return c
}

// of is incluster.Options.Clock; nil is the bubble's.
func (c clocks) of(node string) clock.Clock {
	if h := c.own[node]; h != nil {
		return h
	}
	if w := c.worse[node]; w != nil {
		return w
	}
	return nil
}

// hands gives a client a clock of its own.
func (c clocks) hands(client string) *clocktest.Hands {
	if c.own[client] == nil {
		c.own[client] = &clocktest.Hands{}
	}
	return c.own[client]
}

func (c clocks) set(node string, ahead time.Duration) {
	if h := c.own[node]; h != nil {
		h.Set(ahead)
	}
	if w := c.worse[node]; w != nil {
		w.ahead.Store(int64(ahead))
	}
}

// wallClock is a clock that is ahead. Its past times move with it, unlike those of
// a machine's monotonic clock: that is the worse case.
type wallClock struct {
	clock.System
	ahead atomic.Int64
}

func (c *wallClock) Now() time.Time                  { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *wallClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
