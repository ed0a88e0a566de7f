package fleet

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// Ended grants explain chunks that were written and never committed, until every device has
// reported after their ends. A device that is out and never retired does not report. To keep the
// ranges bounded until an administrator retires it, adjacent ranges that ended long ago are folded
// into one. Stripe numbers are issued in order and only once, so only live grants lie between ended
// ones. About as many ranges remain as there are live grants.

const (
	// foldAfter is how long ago grants must have ended to be folded, in milliseconds of cluster
	// time. A folded range has the latest end of its grants. foldAfter is much longer than the
	// grace, so that this does not keep the chunks of the earlier ones.
	foldAfter = 3600_000
	// endedScan is the number of ended grants that one report inspects. The next report continues
	// after them.
	endedScan = 2000
	// maxFolded bounds the stripes of one folded range.
	maxFolded = 1 << 30
)

// touches reports whether other follows directly after g.
func touches(g *record.Grant, other *record.Grant) bool {
	return g.Last()+1 == other.First && uint64(g.Count)+uint64(other.Count) <= maxFolded
}

// tidyEndedGrants deletes ended ranges after which every device has reported, and folds ranges that
// ended long ago. Each call handles some of them.
func tidyEndedGrants(t *kvtx.Tx) error {
	passed, err := allPassed(&t.View)
	if err != nil {
		return err
	}
	from, err := endedCursor(&t.View)
	if err != nil {
		return err
	}
	var list []*record.Grant
	prefix := t.K.Table(record.TabEndedGrant)
	err = t.Each(t.K.EndedGrant(from), kvtx.PrefixEnd(prefix), func(_, value []byte) (bool, error) {
		g, err := record.DecodeGrant(slices.Clone(value))
		list = append(list, g)
		return len(list) < endedScan, err
	})
	if err != nil {
		return err
	}
	tidy(t, list, passed)
	next := moraine.StripeID(0)
	if len(list) == endedScan {
		next = list[len(list)-1].Last() // inspect it again: it may fold with the next one
	}
	if next != from {
		setEndedCursor(t, next)
	}
	return nil
}

// tidy deletes and folds the ranges of a sorted list.
func tidy(t *kvtx.Tx, list []*record.Grant, passed uint64) {
	now := t.ClusterTime()
	old := func(g *record.Grant) bool { return g.EndedSince+foldAfter <= now }
	var kept *record.Grant // the range that the next one may be folded into
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
		case kept != nil && touches(kept, g):
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

// endedCursor returns the last number of the range where the next report continues.
func endedCursor(v *kvtx.View) (moraine.StripeID, error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaEndedCursor))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeEndedCursor(b)
}

// setEndedCursor stores where the next report continues.
func setEndedCursor(t *kvtx.Tx, at moraine.StripeID) {
	if at == 0 {
		t.Del(t.K.Meta(record.MetaEndedCursor))
		return
	}
	t.Put(t.K.Meta(record.MetaEndedCursor), record.EncodeEndedCursor(at))
}

// EndedGrants counts the ranges of ended grants, up to limit.
func EndedGrants(v *kvtx.View, limit int) (n int, err error) {
	prefix := v.K.Table(record.TabEndedGrant)
	err = v.Scan(prefix, kvtx.PrefixEnd(prefix), func(_, _ []byte) bool {
		n++
		return n < limit
	})
	return n, err
}
