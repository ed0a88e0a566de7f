package raftstore

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// maxEntry bounds one entry, in bytes: it must fit into a segment of the log and into one message.
const maxEntry = 16 << 20

// Propose appends entry to the log and returns the FSM's result on this node, once a majority has
// the entry on disk and it was applied here. Many proposals may be in flight. They are applied in
// the order in which raft took them, which is arbitrary for concurrent calls. entry must not be
// changed afterwards.
//
// NotLeader: the entry was not appended here. Unavailable, Timeout and Canceled: it is unknown
// whether it was or will be applied; the caller retries with a request that is safe to repeat.
func (s *Store) Propose(ctx context.Context, entry []byte) (any, error) {
	const op = "raftstore.Propose"
	if len(entry) == 0 || len(entry) > maxEntry {
		return nil, &moraine.Error{Op: op, Kind: moraine.TooLarge}
	}
	if s.lead.Load() == nil {
		return nil, s.notLeader(op)
	}
	if err := s.enter(ctx, op); err != nil {
		return nil, err
	}
	start := s.deps.Clock.Now()
	// raft's future cannot be waited for together with another event. It always ends: with the
	// entry's commit, the end of this leadership, or raft's end.
	type outcome struct {
		result any
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		defer func() { <-s.inFlight }()
		f := s.raft.Apply(entry, 0)
		if err := f.Error(); err != nil {
			ended <- outcome{err: err}
			return
		}
		ended <- outcome{result: f.Response()}
	}()
	select {
	case o := <-ended:
		if s.fatal.err() != nil {
			return nil, s.stopped(op)
		}
		s.deps.Metrics.ProposeSeconds.Observe(s.deps.Clock.Since(start).Seconds())
		return o.result, s.proposeError(op, o.err)
	case <-s.fatal.ended:
		return nil, s.stopped(op)
	case <-ctx.Done():
		return nil, contextError(op, ctx)
	}
}

// entryPatience is the time after which a wait for a place in flight is logged. The wait continues;
// callers have their own deadlines elsewhere.
const entryPatience = 10 * time.Second

// enter takes a place among the proposals in flight.
func (s *Store) enter(ctx context.Context, op string) error {
	began := s.deps.Clock.Now()
	select {
	case s.inFlight <- struct{}{}:
		return nil
	default:
	}
	for {
		select {
		case s.inFlight <- struct{}{}:
			return nil
		case <-s.fatal.ended:
			return s.stopped(op)
		case <-s.ending:
			return s.stopped(op)
		case <-ctx.Done():
			return s.entries.GaveUp(ctx, s.deps.Clock.Since(began))
		case <-s.deps.Clock.After(entryPatience):
			s.entries.Reports.Exceeded(s.entries.Name, s.deps.Clock.Since(began))
		}
	}
}

func (s *Store) proposeError(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return s.notLeader(op)
	default: // lost on the way: it may be in the log
		return &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: err}
	}
}
