package fleet

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/transport/wire"
)

// A fresh status uses only what hosts and metadata servers reported after the request. A server
// that just died then does not appear up, and a restarted one does not appear in its former state.

// Asked is the time of a status request.
type Asked struct {
	fresh bool
	mark  uint64 // hosts last seen with a greater mark have reported since
	at    time.Time
}

// Ask records a status request; without fresh any report counts.
func (f *Fleet) Ask(fresh bool) Asked {
	return Asked{fresh: fresh, mark: f.Topology.Mark(), at: f.Clock.Now()}
}

// AwaitReports waits, for a fresh status, until each host and metadata server that counts as up has
// reported since the request, or counts as down. It waits at most as long as a host may be silent,
// or the request allows.
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

// allReported reports whether each host with devices in use that counts as up was last seen after a
// mark.
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

// unreported counts the devices in use without a full report of their chunks. Their missing chunks
// are not known yet.
func (v *View) unreported() (n int) {
	for _, d := range v.Devices {
		if holds(d) && !d.Reported {
			n++
		}
	}
	return n
}

// refreshAll publishes everything that hosts have reported.
func (t *topology) refreshAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.publish()
}

// ReportedSince returns a topology in which only hosts that reported after the status request count
// as seen.
func (t *topology) ReportedSince(asked Asked, w *wire.Topology) *wire.Topology {
	if !asked.fresh {
		return w
	}
	out := proto.CloneOf(w)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range out.Hosts {
		if h := t.hosts[w.Id]; h == nil || h.seq <= asked.mark {
			w.Seen = false
		}
	}
	return out
}

// MemberKnown reports whether it is known that a metadata server is up, or that it is not.
func (f *Fleet) MemberKnown(m *lead.Member, asked Asked) bool {
	now := f.Clock.Now()
	switch {
	case m.ID == f.Node:
		return true
	case !m.Alive: // for a moment after an election all members appear so
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
