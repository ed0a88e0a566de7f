package raftstore

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// senders are the goroutines that send a round's messages, one per peer, so that a peer without an
// answer delays no other. They end with the leadership.
type senders struct {
	reads *readConfirmer
	lead  *leadership // the leadership of peers
	peers map[raft.ServerID]chan roundMessage
	wg    sync.WaitGroup
}

type roundMessage struct {
	lead *leadership
	tick uint64
}

func newSenders(rc *readConfirmer) *senders {
	return &senders{reads: rc, peers: map[raft.ServerID]chan roundMessage{}}
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
	t := p.reads.transport
	header := raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(p.reads.cfg.Node),
		Addr:            t.EncodePeer(raft.ServerID(p.reads.cfg.Node), t.local),
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
		for len(ch) == 0 && ctx.Err() == nil && p.reads.tracker.leads(m.lead) && !t.acks.confirmed(id, m.lead.term, m.tick) {
			//lint:ignore SA1019 raft sets Leader in its own requests too
			req := raft.AppendEntriesRequest{RPCHeader: header, Term: m.lead.term, Leader: header.Addr}
			err := t.AppendEntries(id, p.reads.group.address(id), &req, &raft.AppendEntriesResponse{})
			if err == nil {
				break // acknowledged, or of a later term, which raft's heartbeat will find out
			}
			select {
			case <-p.reads.deps.Clock.After(resend):
			case <-ctx.Done():
			}
		}
	}
}
