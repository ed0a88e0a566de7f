package content

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// committedBefore reports whether an identical commit was applied, which happens if its answer was
// lost and the client sent it under a new number. It fails with Stale if the stripe numbers are or
// were used otherwise.
func committedBefore(t *kvtx.Tx, w *commitWork) (bool, error) {
	known := 0
	for _, s := range w.stripes {
		there, err := w.mayKnow(t, s.ID)
		if there && err == nil {
			there, err = committed(t, s)
		}
		if err != nil {
			return false, err
		}
		if there {
			known++
		}
	}
	if known == 0 {
		return w.linkedBefore(t)
	}
	stale := func(why string) (bool, error) {
		return false, kvtx.Fail(moraine.Stale, "commit", w.stripes[0].ID.String(), "the stripes were committed earlier, but %s", why)
	}
	if known < len(w.stripes) {
		return stale("only some of them")
	}
	for _, e := range w.extents {
		there, err := w.has(t, e)
		if err != nil {
			return false, err
		}
		if !there {
			return stale("the file has other extents now")
		}
	}
	if w.op.GetLink() != nil {
		linked, err := w.linked(t)
		if err != nil {
			return false, err
		}
		if !linked {
			return stale("the file does not have the name of the request")
		}
	}
	return true, measure(t, w)
}

// linked reports whether the file has the name that the commit gives it.
func (w *commitWork) linked(t *kvtx.Tx) (bool, error) {
	l := w.op.GetLink()
	e, ok, err := tree.Lookup(&t.View, moraine.InodeID(l.GetParent()), l.GetName())
	return ok && e.Inode == w.i.Id, err
}

// linkedBefore reports whether an identical commit that brings content named the file. Without a
// name, the commit can be applied again.
func (w *commitWork) linkedBefore(t *kvtx.Tx) (bool, error) {
	if w.op.GetLink() == nil || w.i.Owner != 0 {
		return false, nil
	}
	if same, err := w.hasContent(t); err != nil || !same {
		return false, err
	}
	return w.linked(t)
}

// mayKnow reports whether the commit may be compared with an existing stripe. That requires that
// the session's own grant covers the number, or that the file has the stripe where the commit says.
// Any other number is answered as unused by any stripe, so that a client cannot learn which stripes
// exist.
func (w *commitWork) mayKnow(t *kvtx.Tx, id moraine.StripeID) (bool, error) {
	if g, err := fleet.OwnGrant(t, id); err != nil || g != nil {
		return err == nil, err
	}
	n := slices.IndexFunc(w.extents, func(e moraine.Extent) bool { return e.Stripe == id })
	return w.has(t, w.extents[n]) // every stripe has extents, see parseExtents
}

// has reports whether the file has an extent of the commit, assuming that the commit was applied.
func (w *commitWork) has(t *kvtx.Tx, e moraine.Extent) (bool, error) {
	if w.op.GetMode() == wire.CommitMode_COMMIT_MODE_APPEND {
		e.Offset -= w.extents[len(w.extents)-1].End() - w.i.Size // what the commit added to the file's size
	}
	return hasExtent(&t.View, w.i, e)
}

// committed reports whether an identical stripe was committed. It fails with Stale if another
// stripe has the number.
func committed(t *kvtx.Tx, s *moraine.Stripe) (bool, error) {
	// A stripe record always comes with the mark in its grant. Without the mark there is no record.
	if g, err := fleet.OwnGrant(t, s.ID); err != nil || g != nil && !g.IsUsed(s.ID) {
		return false, err
	}
	have, err := fleet.Stripe(&t.View, s.ID)
	if err != nil || have == nil {
		return false, err
	}
	if !fleet.SameChunks(have, s) {
		return false, kvtx.Fail(moraine.Stale, "commit", s.ID.String(), "the stripe number belongs to another stripe")
	}
	return true, nil
}

// hasExtent reports whether the file maps e's range exactly as e does.
func hasExtent(v *kvtx.View, i *record.Inode, e moraine.Extent) (bool, error) {
	if e.Offset < 0 {
		return false, nil
	}
	var have []moraine.Extent
	err := layout.RefsFrom(v, i.Content, e.Offset, func(r record.Ref) (more bool, err error) {
		have, err = layout.ExtsFrom(v, r, e.Offset, 1)
		return false, err
	})
	return err == nil && len(have) == 1 && have[0] == e, err
}
