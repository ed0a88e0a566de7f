package state

import (
	"slices"

	"github.com/morainefs/moraine"
)

// Ended grants explain chunks that were put and never committed, until every device has
// reported past their ends. A device that is out and never retired reports never: so that they
// do not pile up without bound until somebody decides about it, those that ended long ago and
// lie side by side are folded into one. Stripe numbers are given out in order and only once,
// so that between two ended grants there is nothing, in the end, but a live one: about as many
// ranges are left as there are live grants.

const (
	// foldAfter is for how long, in milliseconds of cluster time, grants must have ended to be
	// folded: far longer than the grace. A folded range ended when the last of its grants
	// did, which must not keep the chunks of the others.
	foldAfter = 3600_000
	// endedScan is how many ended grants one report looks at. The next one goes on behind.
	endedScan = 2000
	// maxFolded bounds the stripes of one range.
	maxFolded = 1 << 30
)

// touches reports whether other follows right behind g.
func (g *grant) touches(other *grant) bool {
	return g.last()+1 == other.first && uint64(g.count)+uint64(other.count) <= maxFolded
}

// fold makes one range of g and what follows right behind it.
func (g *grant) fold(other *grant) {
	g.count += other.count
	g.endedAt, g.endedSince = max(g.endedAt, other.endedAt), max(g.endedSince, other.endedSince)
	g.session, g.used = 0, nil // of an ended grant they say nothing
}

// tidyEndedGrants forgets ended ranges that every device has reported past, and folds those
// that ended long ago: some of them, and those behind the next time.
func (m *Machine) tidyEndedGrants(t *tx) error {
	passed, err := t.allPassed()
	if err != nil {
		return err
	}
	from, err := t.endedCursor()
	if err != nil {
		return err
	}
	var bad error
	var list []*grant
	prefix := t.k.table(tabEndedGrant)
	err = t.Scan(t.k.endedGrant(from), prefixEnd(prefix), func(_, value []byte) bool {
		var g *grant
		if g, bad = decodeGrant(slices.Clone(value)); bad == nil {
			list = append(list, g)
		}
		return bad == nil && len(list) < endedScan
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	t.tidy(list, passed)
	next := moraine.StripeID(0)
	if len(list) == endedScan {
		next = list[len(list)-1].last() // again: it may be folded with the next
	}
	if next != from {
		t.setEndedCursor(next)
	}
	return nil
}

// tidy drops and folds the ranges of a list, which are in order.
func (t *tx) tidy(list []*grant, passed uint64) {
	now := t.clusterTime()
	old := func(g *grant) bool { return g.endedSince+foldAfter <= now }
	var kept *grant // the range that the next one may be folded with
	folded := false
	flush := func() {
		if kept != nil && folded {
			t.put(t.k.endedGrant(kept.last()), kept.encode())
		}
		kept, folded = nil, false
	}
	for _, g := range list {
		switch {
		case g.endedAt <= passed:
			t.del(t.k.endedGrant(g.last()))
		case !old(g):
			flush()
		case kept != nil && kept.touches(g):
			t.del(t.k.endedGrant(kept.last()))
			kept.fold(g)
			folded = true
		default:
			flush()
			kept = g
		}
	}
	flush()
}

// endedCursor is the last number of the range at which the next report looks on.
func (v *view) endedCursor() (moraine.StripeID, error) {
	b, ok, err := v.r.Get(v.k.meta(metaEndedCursor))
	if err != nil || !ok {
		return 0, err
	}
	return decodeEndedCursor(b)
}

func encodeEndedCursor(at moraine.StripeID) []byte {
	return putFixed64([]byte{endedCursorVersion}, uint64(at))
}

func decodeEndedCursor(b []byte) (moraine.StripeID, error) {
	d := dec{b: b}
	d.version(endedCursorVersion)
	at := moraine.StripeID(d.fixed64())
	return at, d.end("cursor of ended grants")
}

const endedCursorVersion = 1

func (t *tx) setEndedCursor(at moraine.StripeID) {
	if at == 0 {
		t.del(t.k.meta(metaEndedCursor))
		return
	}
	t.put(t.k.meta(metaEndedCursor), encodeEndedCursor(at))
}

// EndedGrants counts the ranges of ended grants that are kept, up to a limit.
func (m *Machine) EndedGrants(r Reader, limit int) (n int, err error) {
	v := m.view(r)
	prefix := v.k.table(tabEndedGrant)
	err = r.Scan(prefix, prefixEnd(prefix), func(_, _ []byte) bool {
		n++
		return n < limit
	})
	return n, err
}
