package fleet

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

// Asked is when a status was asked for.
type Asked struct {
	fresh bool
	mark  uint64 // Hosts that were heard at a later mark have answered since
	at    time.Time
}

func (f *Fleet) Ask(fresh bool) Asked {
	return Asked{fresh: fresh, mark: f.Topology.Mark(), at: f.Clock.Now()}
}

// AwaitReports waits, where a fresh status was asked for, until each host and metadata server
// that is taken for alive was heard since, or counts as down: no longer than a host may be
// silent, or the request may take.
func (f *Fleet) AwaitReports(ctx context.Context, asked Asked) error {
	if !asked.fresh {
		return nil
	}
	for !f.Topology.allReported(asked.mark) || !f.membersKnown(asked) {
		left := max(f.cfg.Suspect, lead.MemberSilent) + 2*lead.TickEvery - f.Clock.Since(asked.at)
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, deadline.Sub(f.Clock.Now())-lead.ReplyTime)
		}
		if left <= 0 {
			break
		}
		if err := f.Await(ctx, nil, min(left, tellPoll)); err != nil {
			return err
		}
	}
	f.Topology.refreshAll()
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
func (v *View) unreported() (n int) {
	for _, d := range v.Devices {
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

// ReportedSince is a topology in which only those hosts are said to be heard that were after
// the status was asked for.
func (t *topology) ReportedSince(asked Asked, w *wire.Topology) *wire.Topology {
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

// MemberKnown reports whether it is known that a metadata server is alive, or that it is not.
func (f *Fleet) MemberKnown(m *lead.Member, asked Asked) bool {
	now := f.Clock.Now()
	switch {
	case m.ID == f.Node:
		return true
	case !m.Alive: // for a moment after an election that is said of all
		return now.Sub(f.Began) >= lead.MemberSilent
	}
	return !asked.fresh || m.Contact <= now.Sub(asked.at)
}

func (f *Fleet) membersKnown(asked Asked) bool {
	for _, m := range f.Store.Members() {
		if m.Voter && !f.MemberKnown(&m, asked) {
			return false
		}
	}
	return true
}
