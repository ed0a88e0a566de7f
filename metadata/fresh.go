package metadata

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// A fresh status goes by what hosts and metadata servers said after it was asked for: one
// that died a moment before is not taken for alive, and one that was restarted is not taken
// for what it was before.

// asked is when a status was asked for.
type asked struct {
	fresh bool
	mark  uint64 // hosts that were heard at a later mark have answered since
	at    time.Time
}

func (l *leader) ask(fresh bool) asked {
	return asked{fresh: fresh, mark: l.topology.mark(), at: l.Clock.Now()}
}

// awaitReports waits, where a fresh status was asked for, until each host and metadata server
// that is taken for alive was heard since, or counts as down: no longer than a host may be
// silent, or the request may take.
func (l *leader) awaitReports(ctx context.Context, asked asked) error {
	if !asked.fresh {
		return nil
	}
	for !l.topology.allReported(asked.mark) || !l.membersKnown(asked) {
		left := max(l.cfg.Suspect, memberSilent) + 2*tickEvery - l.Clock.Since(asked.at)
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, deadline.Sub(l.Clock.Now())-lead.ReplyTime)
		}
		if left <= 0 {
			break
		}
		if err := l.Await(ctx, nil, min(left, tellPoll)); err != nil {
			return err
		}
	}
	l.topology.refreshAll()
	return nil
}

// allReported reports whether each host with devices in use that is taken for alive was heard
// after a mark.
func (t *topology) allReported(mark uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.hosts {
		if h.alive && !retired(h.record) && (!h.spoke || h.seq <= mark) {
			return false
		}
	}
	return true
}

// unreported counts the devices in use of which a whole report of their chunks is still to
// come: what is missing on them is not known.
func (v *topologyView) unreported() (n int) {
	for _, d := range v.devices {
		if holds(d) && !d.Reported {
			n++
		}
	}
	return n
}

// refreshAll publishes all that hosts have said.
func (t *topology) refreshAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.publish()
}

// reportedSince is a topology in which only those hosts are said to be heard that were after
// the status was asked for.
func (t *topology) reportedSince(asked asked, w *wire.Topology) *wire.Topology {
	if !asked.fresh {
		return w
	}
	out := proto.CloneOf(w)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range out.Hosts {
		if h := t.hosts[w.Id]; h == nil || h.seq <= asked.mark {
			w.Heard = false
		}
	}
	return out
}

// memberKnown reports whether it is known that a metadata server is alive, or that it is not.
func (l *leader) memberKnown(m *lead.Member, asked asked) bool {
	now := l.Clock.Now()
	switch {
	case m.ID == l.Node:
		return true
	case !m.Alive: // for a moment after an election that is said of all
		return now.Sub(l.Began) >= memberSilent
	}
	return !asked.fresh || m.Contact <= now.Sub(asked.at)
}

func (l *leader) membersKnown(asked asked) bool {
	for _, m := range l.Store.Members() {
		if m.Voter && !l.memberKnown(&m, asked) {
			return false
		}
	}
	return true
}
