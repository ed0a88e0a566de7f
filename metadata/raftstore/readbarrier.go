package raftstore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
)

// A read is linearizable if its state has every write that was acknowledged before the read
// arrived. Only the leader knows this, and only while it leads; it may have been deposed without
// knowing. So it runs a round of confirmation:
//
// 1. The round closes to new reads and draws a tick. It records the commit
// index, which covers every write acknowledged by this leader and, since its
// barrier, by earlier ones. 2. It sends an empty AppendEntries of this term to
// enough peers for a majority, first to those that answered last. It sends to
// the others only if the round takes long: their answers decide nothing and
// cost both ends the same. 3. The round succeeds when a majority of voters,
// including this node, has acknowledged a message of this term sent at the tick
// or later. This node must still be in that term. A leader of a later term
// needs the vote of one of them, and a voter that voted before would not have
// acknowledged. So no later leader existed when the tick was drawn, which was
// after each read of the round arrived. 4. Each read waits until the state has
// reached the recorded index.
//
// A read that arrives during a round waits for the next one. Acknowledgements of earlier messages
// do not count, however late they arrive. Raft's own VerifyLeader counts them, and would let a
// deposed leader serve.
//
// This file sends the messages itself, past raft's main loop, which may be waiting for the disk.
// Messages that raft sends on its own also count.

// readRound is one round and the reads that share it.
type readRound struct {
	done  chan struct{}
	reads int
	index uint64 // valid after done
	err   error  // valid after done
}

// readQueue collects the reads of the next round.
type readQueue struct {
	mu   sync.Mutex
	next *readRound    // nil: no read waits
	wake chan struct{} // has room for one
}

func newReadQueue() *readQueue { return &readQueue{wake: make(chan struct{}, 1)} }

// join enters the round that has not begun yet.
func (q *readQueue) join() *readRound {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == nil {
		q.next = &readRound{done: make(chan struct{})}
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	q.next.reads++
	return q.next
}

// take closes the next round to new reads and returns it; nil if no read waits.
func (q *readQueue) take() *readRound {
	q.mu.Lock()
	defer q.mu.Unlock()
	round := q.next
	q.next = nil
	return round
}

// ReadBarrier returns nil once every View that begins afterwards has every entry whose Propose had
// returned before ReadBarrier was called, on any node. If the node does not lead, or has lost its
// majority, it fails with NotLeader or with ctx. It may be called concurrently; concurrent calls
// share rounds.
func (s *Store) ReadBarrier(ctx context.Context) error { return s.reads.barrier(ctx) }

// readConfirmer confirms that this node still leads, for reads.
type readConfirmer struct {
	cfg       *Config
	deps      *Deps
	fatal     *fatal
	group     *group
	tracker   *leadTracker
	reached   *watermark // the index that the state has reached
	transport *transport // set before run

	queue *readQueue // has its own lock
}

// barrier is Store.ReadBarrier.
func (rc *readConfirmer) barrier(ctx context.Context) error {
	start := rc.deps.Clock.Now()
	lead := rc.tracker.lead.Load()
	if lead == nil {
		return rc.tracker.notLeader("raftstore.ReadBarrier")
	}
	index, err := rc.confirm(ctx, lead)
	if err != nil {
		return err
	}
	for {
		risen := rc.reached.reached(index)
		if risen == nil {
			rc.deps.Metrics.BarrierSeconds.Observe(rc.deps.Clock.Since(start).Seconds())
			return nil
		}
		select {
		case <-risen:
		case <-rc.fatal.ended:
			return rc.fatal.stopped("raftstore.ReadBarrier")
		case <-ctx.Done():
			return contextError("raftstore.ReadBarrier", ctx)
		}
	}
}

// confirm returns an index that covers every write acknowledged before the call.
func (rc *readConfirmer) confirm(ctx context.Context, lead *leadership) (uint64, error) {
	if lead.alone && len(rc.group.voters()) == 1 {
		// Without other voters no other node can have been elected.
		index := rc.group.raft.CommitIndex()
		if !rc.tracker.leads(lead) {
			return 0, rc.tracker.notLeader("raftstore.ReadBarrier")
		}
		return index, nil
	}
	round := rc.queue.join()
	select {
	case <-round.done:
		return round.index, round.err
	case <-rc.fatal.ended:
		return 0, rc.fatal.stopped("raftstore.ReadBarrier")
	case <-ctx.Done():
		return 0, contextError("raftstore.ReadBarrier", ctx)
	}
}

// run runs rounds, one after the other, until ctx ends.
func (rc *readConfirmer) run(ctx context.Context) {
	senders := newSenders(rc)
	defer senders.wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		select {
		case <-rc.queue.wake:
		case <-ctx.Done():
			if round := rc.queue.take(); round != nil {
				round.err = rc.fatal.stopped("raftstore.ReadBarrier")
				close(round.done)
			}
			return
		}
		runtime.Gosched() // let reads that are about to join do so now instead of waiting for another round
		if round := rc.queue.take(); round != nil {
			rc.deps.Metrics.ReadRounds.Inc()
			rc.deps.Metrics.ReadsShared.Observe(float64(round.reads))
			round.index, round.err = rc.round(ctx, senders)
			close(round.done)
		}
	}
}

// longRound is how long a round waits for the peers that it asked first.
const longRound = 5 * time.Millisecond

func (rc *readConfirmer) round(ctx context.Context, senders *senders) (uint64, error) {
	lead := rc.tracker.lead.Load()
	if lead == nil {
		return 0, rc.tracker.notLeader("raftstore.ReadBarrier")
	}
	self := raft.ServerID(rc.cfg.Node)
	voters := rc.group.voters()
	index := rc.group.raft.CommitIndex()
	tick := rc.transport.acks.draw()
	peers := rc.transport.acks.newestFirst(voters, self)
	enough := min(len(voters)/2, len(peers))
	senders.send(ctx, lead, peers[:enough], tick)
	long := rc.deps.Clock.After(longRound)
	for !rc.transport.acks.quorum(voters, self, lead.term, tick) {
		select {
		case <-rc.transport.acks.changed:
		case <-long:
			senders.send(ctx, lead, peers[enough:], tick)
		case <-lead.lost:
			return 0, rc.tracker.notLeader("raftstore.ReadBarrier")
		case <-ctx.Done():
			return 0, rc.fatal.stopped("raftstore.ReadBarrier")
		}
	}
	if !rc.tracker.leads(lead) {
		return 0, rc.tracker.notLeader("raftstore.ReadBarrier")
	}
	return index, nil
}

// contextError converts the end of ctx to an error of the right kind.
func contextError(op string, ctx context.Context) error {
	kind := moraine.Timeout
	if errors.Is(ctx.Err(), context.Canceled) {
		kind = moraine.Canceled
	}
	return &moraine.Error{Op: op, Kind: kind, Err: context.Cause(ctx)}
}
