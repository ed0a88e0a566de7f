package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// A stripe is made for one file, and all of its bytes are that file's, or for several files
// below one directory: its origin says which. Whoever may name the origin may read all of the
// stripe. Whoever may not (the stripe came by a clone, or its file was renamed away from those
// that it was packed with) reads just what the extents of his file name.

// setPackOrigin gives the stripe of a pack the nearest directory above all of its files.
func (t *tx) setPackOrigin(w *packWork) error {
	var common []moraine.InodeID // from the nearest directory up
	known := map[moraine.InodeID]bool{}
	for n, f := range w.files {
		at := f.i.Parent
		if known[at] {
			continue
		}
		known[at] = true
		above, err := t.above(at)
		if err != nil {
			return err
		}
		if n == 0 {
			common = above
		} else {
			common = sharedTail(common, above)
		}
	}
	if w.stripe.Origin = t.k.top(); len(common) > 0 {
		w.stripe.Origin = common[0]
	}
	return nil
}

// PackDomain returns the directory below which files of dir are packed with each other: the
// nearest one that a session is confined to, and else one that is packDepth names long, as
// scopes are seldom deeper. A session that is confined to less reads what was packed all the
// same, but can rebuild nothing of it.
func (m *Machine) PackDomain(r Reader, dir moraine.InodeID, scopes map[moraine.InodeID]bool) (moraine.InodeID, error) {
	above, err := m.view(r).above(dir)
	if err != nil {
		return 0, err
	}
	for _, at := range above {
		if scopes[at] {
			return at, nil
		}
	}
	return above[max(len(above)-1-packDepth, 0)], nil
}

// packDepth is how many names lead from the root to a directory whose files are packed with
// each other, in directories below it too.
const packDepth = 2

// above returns a directory and all above it, up to the root.
func (v *view) above(at moraine.InodeID) (all []moraine.InodeID, err error) {
	for at != 0 && len(all) <= maxDepth {
		all = append(all, at)
		dir, err := v.inode(at)
		if err != nil {
			return nil, err
		}
		at = dir.Parent
	}
	return all, nil
}

// sharedTail is what two lists have in common at their ends.
func sharedTail(a, b []moraine.InodeID) []moraine.InodeID {
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return a[len(a)-n:]
}

// limitReads says in a page of extents which stripes a caller may not read as a whole. stripes
// are those of the page, in its order.
func (v *view) limitReads(sc scope, i *record.Inode, stripes []*moraine.Stripe, reply *wire.ExtentsReply) error {
	if sc.root == v.k.top() {
		return nil
	}
	inside := map[moraine.InodeID]bool{i.Id: true}
	for n, s := range stripes {
		in, known := inside[s.Origin]
		if !known {
			var err error
			if in, err = v.mayName(sc, s.Origin); err != nil {
				return err
			}
			inside[s.Origin] = in
		}
		if !in && !namesAll(reply.Extents, s) {
			reply.Limited = append(reply.Limited, uint64(s.ID))
			reply.Stripes[n].LiveBytes, reply.Stripes[n].RefCount = 0, 0 // they tell of others
		}
	}
	return nil
}

// MayName reports whether an inode is there, and in the scope of a caller's session. It is for
// what a leader looks up before the state machine judges the request.
func (m *Machine) MayName(r Reader, caller *statepb.Caller, session moraine.SessionID, id moraine.InodeID) (bool, error) {
	v := m.view(r)
	sc, err := v.readScope(caller, session)
	if isAnswer(err) {
		return false, nil // as it fails, so will the request
	}
	if err != nil {
		return false, err
	}
	return v.mayName(sc, id)
}

// mayName reports whether an inode is there, and in the scope.
func (v *view) mayName(sc scope, id moraine.InodeID) (bool, error) {
	i, err := v.inode(id)
	if moraineKind(err) == moraine.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return v.inScope(sc, i)
}

// namesAll reports whether extents of a file, taken in its order, name all of a stripe.
func namesAll(extents []*wire.Extent, s *moraine.Stripe) bool {
	to := uint64(0)
	for _, e := range extents {
		if e.Stripe == uint64(s.ID) && e.StripeOffset <= to {
			to = max(to, e.StripeOffset+e.Length)
		}
	}
	return to >= uint64(s.Length)
}
