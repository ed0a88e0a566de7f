package raftstore

import (
	"context"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// leadership is one term in which this node leads and serves. It exists from
// the end of the term's barrier, when the state holds everything that earlier
// leaders acknowledged, until raft says that it is over.
type leadership struct {
	term uint64
	// alone: at the term's start this node was the only voter.
	alone bool
	lost  chan struct{}
}

// NotLeader says who leads. It is the Err of a *moraine.Error of that kind.
type NotLeader struct {
	// Leader is the ID of the node that leads, "" where this node does not know.
	Leader string
	// Addresses are where clients reach it.
	Addresses []string
}

func (e *NotLeader) Error() string {
	if e.Leader == "" {
		return "no leader is known: try the other metadata servers"
	}
	return "node " + e.Leader + " leads"
}

// notLeader returns the error for a caller that should go elsewhere. Where this
// node leads but has not passed its barrier the error names nobody: the caller
// comes back.
func (s *Store) notLeader(op string) error {
	id, _ := s.Leader()
	hint := &NotLeader{}
	if id != s.cfg.Node {
		if p, ok := s.member(id); ok {
			hint = &NotLeader{Leader: id, Addresses: p.Client}
		}
	}
	return &moraine.Error{Op: op, Ref: s.cfg.Node, Kind: moraine.NotLeader, Err: hint}
}

// Leader returns the ID of the leader as far as this node knows, "" if it knows
// none, and whether it is this node and serves. Only ReadBarrier can tell
// whether it still is.
func (s *Store) Leader() (id string, isLeader bool) {
	select {
	case <-s.ready:
	default:
		return "", false
	}
	_, leader := s.raft.LeaderWithID()
	return string(leader), s.lead.Load() != nil
}

// leaderAddress is that of the leader as far as this node knows.
func (s *Store) leaderAddress() raft.ServerAddress {
	address, _ := s.raft.LeaderWithID()
	return address
}

// LeadershipChanges returns the channel, always the same one, that gets true
// when this node begins to serve as leader, its state complete, and false when
// it has stopped. They alternate, beginning with true. A slow receiver misses
// whole terms, but never the false between two of them.
func (s *Store) LeadershipChanges() <-chan bool { return s.changes }

// barrier is the outcome of a term's barrier.
type barrier struct {
	number int // of the leadership it was for
	lead   *leadership
	index  uint64
	err    error
}

// watchLeadership follows raft's leadership until ctx ends.
func (s *Store) watchLeadership(ctx context.Context) {
	done := make(chan barrier)
	number := 0
	var news announcements
	defer s.endLead()
	for {
		out, next := news.next(s.changes)
		select {
		case leads := <-s.notify:
			number++
			if !leads {
				s.endLead()
				news.add(false)
				continue
			}
			go s.runBarrier(ctx, number, done)
		case b := <-done:
			if b.number != number || b.err != nil {
				continue // over already, or never served: false is on its way
			}
			s.machine.last.raise(b.index)
			s.lead.Store(b.lead)
			s.deps.Metrics.Leader.Set(1)
			s.deps.Metrics.LeaderChanges.Inc()
			s.deps.Log.Info("leading", "term", b.lead.term, "index", b.index)
			news.add(true)
		case out <- next:
			news.sent()
		case <-ctx.Done():
			return
		}
	}
}

// runBarrier waits until the state holds all entries of earlier terms. Those
// that raft does not hand to the state (its own no-op and barrier entries) lie
// below the barrier's index: from there on the state's index and the commit
// index speak of the same entries.
//
// It takes a place among the proposals in flight, which Run waits for.
func (s *Store) runBarrier(ctx context.Context, number int, done chan<- barrier) {
	select {
	case s.inFlight <- struct{}{}:
	case <-ctx.Done():
		return
	}
	b := barrier{number: number, lead: &leadership{term: s.raft.CurrentTerm(), lost: make(chan struct{})}}
	voters := s.voters()
	b.lead.alone = len(voters) == 1 && voters[0] == raft.ServerID(s.cfg.Node)
	f := s.raft.Barrier(0)
	if b.err = f.Error(); b.err == nil {
		b.index = f.(raft.IndexFuture).Index()
	}
	<-s.inFlight
	select {
	case done <- b:
	case <-ctx.Done():
	}
}

// endLead ends the leadership, if there is one.
func (s *Store) endLead() {
	if lead := s.lead.Swap(nil); lead != nil {
		close(lead.lost)
		s.deps.Metrics.Leader.Set(0)
		s.deps.Log.Info("no longer leading", "term", lead.term)
	}
}

// announcements are the changes that the receiver has not taken. It sees an
// alternation: a term that began and ended unseen is left out.
type announcements struct {
	last  bool // what the receiver took last
	queue []bool
}

func (a *announcements) add(leads bool) {
	end := a.last
	if n := len(a.queue); n > 0 {
		end = a.queue[n-1]
	}
	switch {
	case leads == end:
	case !leads && len(a.queue) > 0:
		a.queue = a.queue[:len(a.queue)-1] // the true that nobody saw
	default:
		a.queue = append(a.queue, leads)
	}
}

// next returns what to send, and on which channel: nil if there is nothing.
func (a *announcements) next(ch chan<- bool) (chan<- bool, bool) {
	if len(a.queue) == 0 {
		return nil, false
	}
	return ch, a.queue[0]
}

func (a *announcements) sent() {
	a.last = a.queue[0]
	a.queue = a.queue[1:]
}
