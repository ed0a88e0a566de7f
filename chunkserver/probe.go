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

// Whether a server can be used, only one who tries knows: a heartbeat shows that it can
// call, not that it can be called. So each chunkserver tries the addresses of a few servers,
// which the service chooses, now and then, and tells the service what came of it. The rest
// of the package dials nobody.

const (
	// probeEvery is how often a server that was reached is tried again, probeAgain one that
	// was not.
	probeEvery = 10 * time.Second
	probeAgain = 2 * time.Second
	// maxTargets bounds the servers that are tried, maxTargetAddresses the addresses of one
	// that are, and maxProbes the connections at a time.
	maxTargets         = 64
	maxTargetAddresses = 16
	maxProbes          = 4
)

// targetName names a server that is tried.
type targetName struct{ role, node string }

// prober tries servers. Its targets come with the answers to heartbeats.
type prober struct {
	mu      sync.Mutex // guards what follows
	targets map[targetName]*probed
	poke    chan struct{} // there is a target to be tried at once
}

// probed is one target, and what came of its last probe.
type probed struct {
	target *wire.ProbeTarget
	tried  bool
	mark   uint64 // that it was last tried under
	err    string
	next   time.Time // when it is to be tried again; zero: at once
	under  bool      // it is being tried
}

func newProber() *prober {
	return &prober{targets: make(map[targetName]*probed), poke: make(chan struct{}, 1)}
}

// aim takes over the targets that the service names. One with another mark than before is
// tried at once.
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

// results are the last outcomes of all targets that were tried.
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

// due takes those that are to be tried now.
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

// probes tries the targets when they are due, until ctx ends.
func (s *Server) probes(ctx context.Context) {
	tick := s.deps.Clock.NewTicker(time.Second)
	defer tick.Stop()
	var g errgroup.Group
	g.SetLimit(maxProbes)
	defer g.Wait() //nolint:errcheck // none fails
	for {
		for _, t := range s.prober.due(s.deps.Clock.Now()) {
			g.Go(func() error { s.probe(ctx, t); return nil })
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.prober.poke:
		}
	}
}

// probe tries each address of one target.
func (s *Server) probe(ctx context.Context, t *probed) {
	s.prober.mu.Lock()
	target := t.target
	s.prober.mu.Unlock()
	text := ""
	for _, addr := range addressesToTry(target.Addresses) {
		if err := s.deps.Probe(ctx, transport.Role(target.Role), target.Node, addr); err != nil {
			text = wire.Text(addr+": "+err.Error(), maxErrorText)
			break
		}
	}
	s.prober.mu.Lock()
	defer s.prober.mu.Unlock()
	t.under = false
	if ctx.Err() != nil {
		return
	}
	outcome, wait := "ok", probeEvery
	if text != "" {
		outcome, wait = "failed", probeAgain
	}
	s.deps.Metrics.Probes.WithLabelValues(outcome).Inc()
	if t.target.Mark == target.Mark { // else it is tried again now
		t.tried, t.mark, t.err, t.next = true, target.Mark, text, s.deps.Clock.Now().Add(wait)
	}
}

// addressesToTry leaves out unix sockets, which only programs of the target's own host can
// reach, unless there is nothing else.
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
