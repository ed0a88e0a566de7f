package raftstore

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/limit"
)

// maxEntry bounds one entry, in bytes: it must fit into a segment of the log and into one message.
const maxEntry = 16 << 20

// Propose appends entry to the log and returns the FSM's result on this node.
// It returns when a majority has the entry on disk and this node has applied
// it. Many proposals may be in flight. They are applied in the order in which
// raft took them, which is arbitrary for concurrent calls. entry must not be
// changed afterwards.
//
// NotLeader: the entry was not appended here. Unavailable, Timeout and Canceled: it is unknown
// whether it was or will be applied; the caller retries with a request that is safe to repeat.
func (s *Store) Propose(ctx context.Context, entry []byte) (any, error) {
	return s.proposals.propose(ctx, entry)
}

// proposals passes entries, and changes of the members, to raft.
type proposals struct {
	cfg     *Config
	deps    *Deps
	fatal   *fatal
	group   *group
	tracker *leadTracker

	inFlight chan struct{}
	entries  limit.Resource // resource that inFlight uses
	ending   chan struct{}  // closed when Run begins to end
}

// propose is Store.Propose.
func (p *proposals) propose(ctx context.Context, entry []byte) (any, error) {
	const op = "raftstore.Propose"
	if len(entry) == 0 || len(entry) > maxEntry {
		return nil, &moraine.Error{Op: op, Kind: moraine.TooLarge}
	}
	if p.tracker.lead.Load() == nil {
		return nil, p.tracker.notLeader(op)
	}
	if err := p.enter(ctx, op); err != nil {
		return nil, err
	}
	start := p.deps.Clock.Now()
	// raft's future cannot be waited for together with another event. It always ends: with the
	// entry's commit, the end of this leadership, or raft's end.
	type outcome struct {
		result any
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		defer func() { <-p.inFlight }()
		f := p.group.raft.Apply(entry, 0)
		if err := f.Error(); err != nil {
			ended <- outcome{err: err}
			return
		}
		ended <- outcome{result: f.Response()}
	}()
	select {
	case o := <-ended:
		if p.fatal.err() != nil {
			return nil, p.fatal.stopped(op)
		}
		p.deps.Metrics.ProposeSeconds.Observe(p.deps.Clock.Since(start).Seconds())
		return o.result, p.classify(op, o.err)
	case <-p.fatal.ended:
		return nil, p.fatal.stopped(op)
	case <-ctx.Done():
		return nil, contextError(op, ctx)
	}
}

// entryPatience is the time after which a wait for a place in flight is logged. The wait continues;
// callers have their own deadlines elsewhere.
const entryPatience = 10 * time.Second

// enter takes a place among the proposals in flight.
func (p *proposals) enter(ctx context.Context, op string) error {
	began := p.deps.Clock.Now()
	select {
	case p.inFlight <- struct{}{}:
		return nil
	default:
	}
	for {
		select {
		case p.inFlight <- struct{}{}:
			return nil
		case <-p.fatal.ended:
			return p.fatal.stopped(op)
		case <-p.ending:
			return p.fatal.stopped(op)
		case <-ctx.Done():
			return p.entries.GaveUp(ctx, p.deps.Clock.Since(began))
		case <-p.deps.Clock.After(entryPatience):
			p.entries.Reports.Exceeded(p.entries.Name, p.deps.Clock.Since(began))
		}
	}
}

func (p *proposals) classify(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return p.tracker.notLeader(op)
	default: // lost on the way: it may be in the log
		return &moraine.Error{Op: op, Ref: p.cfg.Node, Kind: moraine.Unavailable, Err: err}
	}
}

// reconfigure waits for the future of begin, as Propose waits for a proposal.
func (p *proposals) reconfigure(ctx context.Context, op string, begin func() raft.Future) error {
	if p.tracker.lead.Load() == nil {
		return p.tracker.notLeader(op)
	}
	ended := make(chan error, 1)
	go func() { ended <- begin().Error() }() // it ends with its commit, this leadership, or raft
	select {
	case err := <-ended:
		return p.classify(op, err)
	case <-p.fatal.ended:
		return p.fatal.stopped(op)
	case <-ctx.Done():
		return contextError(op, ctx)
	}
}

// drain waits for the proposals in flight, because a raft that is shut down drops those that it has
// passed to the state. They end with their commit, or with the leadership, which without a majority
// lasts as long as its lease.
func (p *proposals) drain() {
	patience := p.deps.Clock.After(2*p.cfg.LeaderLease + time.Second)
	for range cap(p.inFlight) {
		select {
		case p.inFlight <- struct{}{}:
		case <-patience:
			return
		case <-p.fatal.ended:
			return
		}
	}
}
