package chunkserver

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A heartbeat shows that a server can connect, not that others can connect to it.
// So each chunkserver probes the addresses of a few servers, which the leader
// chooses, from time to time, and reports the results. The rest of the package
// connects to no server.

const (
	// probeEvery is how often a reachable server is probed again, probeAgain an
	// unreachable one.
	probeEvery = 10 * time.Second
	probeAgain = 2 * time.Second
	// maxTargets limits the servers that are probed, maxTargetAddresses the
	// addresses of one server, and maxProbes the concurrent connections.
	maxTargets         = 64
	maxTargetAddresses = 16
	maxProbes          = 4
)

// targetName names a server that is probed.
type targetName struct{ role, node string }

// prober probes servers. Its targets come with the answers to heartbeats.
type prober struct {
	deps *Deps

	mu      sync.Mutex // guards the fields below
	targets map[targetName]*probed
	poke    chan struct{} // signals a target to probe at once
}

// probed is one target, and the result of its last probe.
type probed struct {
	target *wire.ProbeTarget
	tried  bool
	mark   uint64 // the mark under which it was last probed
	err    string
	next   time.Time // the time of the next probe; zero: at once
	under  bool      // a probe is running
}

func newProber(deps *Deps) *prober {
	return &prober{deps: deps, targets: make(map[targetName]*probed), poke: make(chan struct{}, 1)}
}

// aim takes over the targets of the metadata service. A target whose mark changed
// is probed at once.
func (p *prober) aim(targets []*wire.ProbeTarget) {
	targets = targets[:min(len(targets), maxTargets)]
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.targets
	p.targets = make(map[targetName]*probed, len(targets))
	for _, t := range targets {
		name := targetName{t.Role, t.Node}
		have := old[name]
		if have == nil {
			have = &probed{}
		}
		if have.target.GetMark() != t.Mark {
			have.next, have.tried = time.Time{}, false
			select {
			case p.poke <- struct{}{}:
			default:
			}
		}
		have.target = t
		p.targets[name] = have
	}
}

// results are the last results of all probed targets.
func (p *prober) results() (out []*wire.Probe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.targets {
		if t.tried {
			out = append(out, &wire.Probe{Role: name.role, Node: name.node, Mark: t.mark, Error: t.err})
		}
	}
	return out
}

// due takes the targets to probe now.
func (p *prober) due(now time.Time) (out []*probed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		if !t.under && !t.next.After(now) {
			t.under = true
			out = append(out, t)
		}
	}
	return out
}

// run probes the targets when they are due, until ctx ends.
func (p *prober) run(ctx context.Context) {
	tick := p.deps.Clock.NewTicker(time.Second)
	defer tick.Stop()
	var g errgroup.Group
	g.SetLimit(maxProbes)
	defer g.Wait() //nolint:errcheck // none fails
	for {
		for _, t := range p.due(p.deps.Clock.Now()) {
			g.Go(func() error { p.probe(ctx, t); return nil })
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.poke:
		}
	}
}

// probe probes each address of one target.
func (p *prober) probe(ctx context.Context, t *probed) {
	p.mu.Lock()
	target := t.target
	p.mu.Unlock()
	text := ""
	for _, addr := range addressesToTry(target.Addresses) {
		if err := p.deps.Probe(ctx, transport.Role(target.Role), target.Node, addr); err != nil {
			text = wire.Text(addr+": "+err.Error(), maxErrorText)
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.under = false
	if ctx.Err() != nil {
		return
	}
	outcome, wait := "ok", probeEvery
	if text != "" {
		outcome, wait = "failed", probeAgain
	}
	p.deps.Metrics.Probes.WithLabelValues(outcome).Inc()
	if t.target.Mark == target.Mark { // otherwise it is probed again now
		t.tried, t.mark, t.err, t.next = true, target.Mark, text, p.deps.Clock.Now().Add(wait)
	}
}

// addressesToTry leaves out unix sockets, which only programs on the target's own
// host can reach, unless there is nothing else.
func addressesToTry(addresses []string) []string {
	var out []string
	for _, a := range addresses {
		if !strings.HasPrefix(a, "unix:") {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		out = addresses
	}
	return out[:min(len(out), maxTargetAddresses)]
}
