package raftstore

import (
	"context"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// leadership is one term in which this node leads and serves. It begins when the term's barrier is
// passed and the state has everything that earlier leaders acknowledged. It ends when raft reports
// that it is over.
type leadership struct {
	term uint64
	// alone: at the term's start this node was the only voter.
	alone bool
	lost  chan struct{}
}

// NotLeader names the leader. It is the Err of a *moraine.Error of that kind.
type NotLeader struct {
	// Leader is the ID of the leading node; "" if this node does not know it.
	Leader string
	// Addresses are its addresses for clients.
	Addresses []string
}

func (e *NotLeader) Error() string {
	if e.Leader == "" {
		return "no leader is known: try the other metadata servers"
	}
	return "node " + e.Leader + " leads"
}

// Leader returns the ID of the leader as far as this node knows, "" if unknown, and whether it is
// this node and serves. Only ReadBarrier shows whether it still leads.
func (s *Store) Leader() (id string, isLeader bool) { return s.tracker.leader() }

// LeadershipChanges returns a channel, always the same. It sends true when this
// node begins to serve as leader, with a complete state, and false when it has
// stopped. The values alternate, beginning with true. A slow receiver misses
// whole terms, but never the false between two of them.
func (s *Store) LeadershipChanges() <-chan bool { return s.tracker.changes }

// leadTracker follows the leadership of this node.
type leadTracker struct {
	cfg      *Config
	deps     *Deps
	group    *group
	reached  *watermark    // the index that the state has reached
	ready    chan struct{} // Store.ready
	inFlight chan struct{} // the places of proposals, of which a barrier takes one

	lead    atomic.Pointer[leadership] // nil while this node does not serve as leader; only run sets it
	notify  chan bool                  // from raft
	changes chan bool                  // see Store.LeadershipChanges
}

// notLeader returns the error that redirects a caller. If this node leads but has not passed its
// barrier, the error names nobody, so that the caller retries.
func (lt *leadTracker) notLeader(op string) error {
	id, _ := lt.leader()
	hint := &NotLeader{}
	if id != lt.cfg.Node {
		if p, ok := lt.group.member(id); ok {
			hint = &NotLeader{Leader: id, Addresses: p.Client}
		}
	}
	return &moraine.Error{Op: op, Ref: lt.cfg.Node, Kind: moraine.NotLeader, Err: hint}
}

// leader is Store.Leader.
func (lt *leadTracker) leader() (id string, isLeader bool) {
	select {
	case <-lt.ready:
	default:
		return "", false
	}
	_, leader := lt.group.raft.LeaderWithID()
	return string(leader), lt.lead.Load() != nil
}

// leads reports whether this node leads now, in lead's term.
func (lt *leadTracker) leads(lead *leadership) bool {
	return lt.group.raft.State() == raft.Leader && lt.group.raft.CurrentTerm() == lead.term
}

// barrier is the outcome of a term's barrier.
type barrier struct {
	number int // number of its leadership
	lead   *leadership
	index  uint64
	err    error
}

// run follows raft's leadership until ctx ends.
func (lt *leadTracker) run(ctx context.Context) {
	done := make(chan barrier)
	number := 0
	var news announcements
	defer lt.end()
	for {
		out, next := news.next(lt.changes)
		select {
		case leads := <-lt.notify:
			number++
			if !leads {
				lt.end()
				news.add(false)
				continue
			}
			go lt.runBarrier(ctx, number, done)
		case b := <-done:
			if b.number != number || b.err != nil {
				continue // over already, or never served: false follows
			}
			lt.reached.raise(b.index)
			lt.lead.Store(b.lead)
			lt.deps.Metrics.Leader.Set(1)
			lt.deps.Metrics.LeaderChanges.Inc()
			lt.deps.Log.Info("leading", "term", b.lead.term, "index", b.index)
			news.add(true)
		case out <- next:
			news.sent()
		case <-ctx.Done():
			return
		}
	}
}

// runBarrier waits until the state has all entries of earlier terms. Entries that raft does not
// pass to the state (its own no-op and barrier entries) are below the barrier's index. From there
// on the state's index and the commit index count the same entries.
//
// It takes a place among the proposals in flight, for which Run waits.
func (lt *leadTracker) runBarrier(ctx context.Context, number int, done chan<- barrier) {
	select {
	case lt.inFlight <- struct{}{}:
	case <-ctx.Done():
		return
	}
	b := barrier{number: number, lead: &leadership{term: lt.group.raft.CurrentTerm(), lost: make(chan struct{})}}
	voters := lt.group.voters()
	b.lead.alone = len(voters) == 1 && voters[0] == raft.ServerID(lt.cfg.Node)
	f := lt.group.raft.Barrier(0)
	if b.err = f.Error(); b.err == nil {
		b.index = f.(raft.IndexFuture).Index()
	}
	<-lt.inFlight
	select {
	case done <- b:
	case <-ctx.Done():
	}
}

// end ends the leadership, if any.
func (lt *leadTracker) end() {
	if lead := lt.lead.Swap(nil); lead != nil {
		close(lead.lost)
		lt.deps.Metrics.Leader.Set(0)
		lt.deps.Log.Info("no longer leading", "term", lead.term)
	}
}

// announcements are the changes that the receiver has not taken. It receives alternating values: a
// term that began and ended unseen is omitted.
type announcements struct {
	last  bool // the last value taken by the receiver
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
		a.queue = a.queue[:len(a.queue)-1] // drop the true that nobody received
	default:
		a.queue = append(a.queue, leads)
	}
}

// next returns what to send, and the channel for it; nil if there is nothing.
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
