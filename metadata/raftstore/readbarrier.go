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
// 1. The round closes to new reads and draws a tick. It records the commit index, which covers
// every write acknowledged by this leader and, since its barrier, by earlier ones. 2. It sends an
// empty AppendEntries of this term to enough peers for a majority, first to those that answered
// last. It sends to the others only if the round takes long: their answers decide nothing and cost
// both ends the same. 3. The round succeeds when a majority of voters, including this node, has
// acknowledged a message of this term sent at the tick or later, and this node is still in that
// term. A leader of a later term needs the vote of one of them, and a voter that voted before would
// not have acknowledged. So no later leader existed when the tick was drawn, which was after each
// read of the round arrived. 4. Each read waits until the state has reached the recorded index.
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
func (s *Store) ReadBarrier(ctx context.Context) error {
	start := s.deps.Clock.Now()
	lead := s.lead.Load()
	if lead == nil {
		return s.notLeader("raftstore.ReadBarrier")
	}
	index, err := s.confirm(ctx, lead)
	if err != nil {
		return err
	}
	for {
		risen := s.machine.last.reached(index)
		if risen == nil {
			s.deps.Metrics.BarrierSeconds.Observe(s.deps.Clock.Since(start).Seconds())
			return nil
		}
		select {
		case <-risen:
		case <-s.fatal.ended:
			return s.stopped("raftstore.ReadBarrier")
		case <-ctx.Done():
			return contextError("raftstore.ReadBarrier", ctx)
		}
	}
}

// confirm returns an index that covers every write acknowledged before the call.
func (s *Store) confirm(ctx context.Context, lead *leadership) (uint64, error) {
	if lead.alone && len(s.voters()) == 1 {
		// Without other voters no other node can have been elected.
		index := s.raft.CommitIndex()
		if !s.leads(lead) {
			return 0, s.notLeader("raftstore.ReadBarrier")
		}
		return index, nil
	}
	round := s.reads.join()
	select {
	case <-round.done:
		return round.index, round.err
	case <-s.fatal.ended:
		return 0, s.stopped("raftstore.ReadBarrier")
	case <-ctx.Done():
		return 0, contextError("raftstore.ReadBarrier", ctx)
	}
}

// runReads runs rounds, one after the other, until ctx ends.
func (s *Store) runReads(ctx context.Context) {
	senders := newSenders(s)
	defer senders.wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		select {
		case <-s.reads.wake:
		case <-ctx.Done():
			if round := s.reads.take(); round != nil {
				round.err = s.stopped("raftstore.ReadBarrier")
				close(round.done)
			}
			return
		}
		runtime.Gosched() // let reads that are about to join do so now instead of waiting for another round
		if round := s.reads.take(); round != nil {
			s.deps.Metrics.ReadRounds.Inc()
			s.deps.Metrics.ReadsShared.Observe(float64(round.reads))
			round.index, round.err = s.runRound(ctx, senders)
			close(round.done)
		}
	}
}

// longRound is how long a round waits for the peers that it asked first.
const longRound = 5 * time.Millisecond

func (s *Store) runRound(ctx context.Context, senders *senders) (uint64, error) {
	lead := s.lead.Load()
	if lead == nil {
		return 0, s.notLeader("raftstore.ReadBarrier")
	}
	self := raft.ServerID(s.cfg.Node)
	voters := s.voters()
	index := s.raft.CommitIndex()
	tick := s.transport.acks.draw()
	peers := s.transport.acks.newestFirst(voters, self)
	enough := min(len(voters)/2, len(peers))
	senders.send(ctx, lead, peers[:enough], tick)
	long := s.deps.Clock.After(longRound)
	for !s.transport.acks.quorum(voters, self, lead.term, tick) {
		select {
		case <-s.transport.acks.changed:
		case <-long:
			senders.send(ctx, lead, peers[enough:], tick)
		case <-lead.lost:
			return 0, s.notLeader("raftstore.ReadBarrier")
		case <-ctx.Done():
			return 0, s.stopped("raftstore.ReadBarrier")
		}
	}
	if !s.leads(lead) {
		return 0, s.notLeader("raftstore.ReadBarrier")
	}
	return index, nil
}

// leads reports whether this node leads now, in lead's term.
func (s *Store) leads(lead *leadership) bool {
	return s.raft.State() == raft.Leader && s.raft.CurrentTerm() == lead.term
}

// voters returns the voters of the latest configuration.
func (s *Store) voters() []raft.ServerID {
	servers, _ := s.configuration()
	var out []raft.ServerID
	for _, srv := range servers {
		if srv.Suffrage == raft.Voter {
			out = append(out, srv.ID)
		}
	}
	return out
}

// senders are the goroutines that send a round's messages, one per peer, so that a peer without an
// answer delays no other. They end with the leadership.
type senders struct {
	store *Store
	lead  *leadership // the leadership of peers
	peers map[raft.ServerID]chan roundMessage
	wg    sync.WaitGroup
}

type roundMessage struct {
	lead *leadership
	tick uint64
}

func newSenders(s *Store) *senders {
	return &senders{store: s, peers: map[raft.ServerID]chan roundMessage{}}
}

// send asks each peer's sender to send for the round. A sender that is busy with an earlier round
// takes the newest when it is free.
func (p *senders) send(ctx context.Context, lead *leadership, peers []raft.ServerID, tick uint64) {
	if p.lead != lead {
		p.lead = lead
		clear(p.peers)
	}
	for _, id := range peers {
		ch := p.peers[id]
		if ch == nil {
			ch = make(chan roundMessage, 1)
			p.peers[id] = ch
			p.wg.Go(func() { p.run(ctx, id, lead, ch) })
		}
		select {
		case <-ch: // an older round that was not started
		default:
		}
		ch <- roundMessage{lead: lead, tick: tick}
	}
}

func (p *senders) wait() { p.wg.Wait() }

// resend is how long a sender waits after a failure; raft's own heartbeats are sent in between.
const resend = 20 * time.Millisecond

func (p *senders) run(ctx context.Context, id raft.ServerID, lead *leadership, ch <-chan roundMessage) {
	t := p.store.transport
	header := raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(p.store.cfg.Node),
		Addr:            t.EncodePeer(raft.ServerID(p.store.cfg.Node), t.local),
	}
	for {
		var m roundMessage
		select {
		case m = <-ch:
		case <-lead.lost:
			return
		case <-ctx.Done():
			return
		}
		for len(ch) == 0 && ctx.Err() == nil && p.store.leads(m.lead) && !t.acks.confirmed(id, m.lead.term, m.tick) {
			req := raft.AppendEntriesRequest{RPCHeader: header, Term: m.lead.term, Leader: header.Addr}
			err := t.AppendEntries(id, p.store.address(id), &req, &raft.AppendEntriesResponse{})
			if err == nil {
				break // acknowledged, or of a later term, which raft's heartbeat will find out
			}
			select {
			case <-p.store.deps.Clock.After(resend):
			case <-ctx.Done():
			}
		}
	}
}

// address returns the address of id; the transport asks the address book first.
func (s *Store) address(id raft.ServerID) raft.ServerAddress {
	p, _ := s.member(string(id))
	return raft.ServerAddress(p.Address)
}

// contextError converts the end of ctx to an error of the right kind.
func contextError(op string, ctx context.Context) error {
	kind := moraine.Timeout
	if errors.Is(ctx.Err(), context.Canceled) {
		kind = moraine.Canceled
	}
	return &moraine.Error{Op: op, Kind: kind, Err: context.Cause(ctx)}
}
