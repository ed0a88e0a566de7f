package fleet

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
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

// Touches reports whether other follows right behind g.
func Touches(g *record.Grant, other *record.Grant) bool {
	return g.Last()+1 == other.First && uint64(g.Count)+uint64(other.Count) <= maxFolded
}

// TidyEndedGrants forgets ended ranges that every device has reported past, and folds those
// that ended long ago: some of them, and those behind the next time.
func TidyEndedGrants(t *kvtx.Tx) error {
	passed, err := AllPassed(&t.View)
	if err != nil {
		return err
	}
	from, err := EndedCursor(&t.View)
	if err != nil {
		return err
	}
	var bad error
	var list []*record.Grant
	prefix := t.K.Table(record.TabEndedGrant)
	err = t.Scan(t.K.EndedGrant(from), kvtx.PrefixEnd(prefix), func(_, value []byte) bool {
		var g *record.Grant
		if g, bad = record.DecodeGrant(slices.Clone(value)); bad == nil {
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
	Tidy(t, list, passed)
	next := moraine.StripeID(0)
	if len(list) == endedScan {
		next = list[len(list)-1].Last() // again: it may be folded with the next
	}
	if next != from {
		SetEndedCursor(t, next)
	}
	return nil
}

// Tidy drops and folds the ranges of a list, which are in order.
func Tidy(t *kvtx.Tx, list []*record.Grant, passed uint64) {
	now := t.ClusterTime()
	old := func(g *record.Grant) bool { return g.EndedSince+foldAfter <= now }
	var kept *record.Grant // the range that the next one may be folded with
	folded := false
	flush := func() {
		if kept != nil && folded {
			t.Put(t.K.EndedGrant(kept.Last()), kept.Encode())
		}
		kept, folded = nil, false
	}
	for _, g := range list {
		switch {
		case g.EndedAt <= passed:
			t.Del(t.K.EndedGrant(g.Last()))
		case !old(g):
			flush()
		case kept != nil && Touches(kept, g):
			t.Del(t.K.EndedGrant(kept.Last()))
			kept.Fold(g)
			folded = true
		default:
			flush()
			kept = g
		}
	}
	flush()
}

// EndedCursor is the last number of the range at which the next report looks on.
func EndedCursor(v *kvtx.View) (moraine.StripeID, error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaEndedCursor))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeEndedCursor(b)
}

func SetEndedCursor(t *kvtx.Tx, at moraine.StripeID) {
	if at == 0 {
		t.Del(t.K.Meta(record.MetaEndedCursor))
		return
	}
	t.Put(t.K.Meta(record.MetaEndedCursor), record.EncodeEndedCursor(at))
}

// EndedGrants counts the ranges of ended grants that are kept, up to a limit.
func EndedGrants(r *kvtx.View, limit int) (n int, err error) {
	v := r
	prefix := v.K.Table(record.TabEndedGrant)
	err = r.Scan(prefix, kvtx.PrefixEnd(prefix), func(_, _ []byte) bool {
		n++
		return n < limit
	})
	return n, err
}
