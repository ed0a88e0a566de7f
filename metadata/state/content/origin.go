package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// A stripe is made for one file, and all of its bytes are that file's, or for several files
// below one directory: its origin says which. Whoever may name the origin may read all of the
// stripe. Whoever may not (the stripe came by a clone, or its file was renamed away from those
// that it was packed with) reads just what the extents of his file name.

// SetPackOrigin gives the stripe of a pack the nearest directory above all of its files.
func SetPackOrigin(t *kvtx.Tx, w *packWork) error {
	var common []moraine.InodeID // from the nearest directory up
	known := map[moraine.InodeID]bool{}
	for n, f := range w.files {
		at := f.i.Parent
		if known[at] {
			continue
		}
		known[at] = true
		above, err := tree.Above(&t.View, at)
		if err != nil {
			return err
		}
		if n == 0 {
			common = above
		} else {
			common = tree.SharedTail(common, above)
		}
	}
	if w.stripe.Origin = t.K.Top(); len(common) > 0 {
		w.stripe.Origin = common[0]
	}
	return nil
}

// PackDomain returns the directory below which files of dir are packed with each other: the
// nearest one that a session is confined to, and else one that is packDepth names long, as
// scopes are seldom deeper. A session that is confined to less reads what was packed all the
// same, but can rebuild nothing of it.
func PackDomain(r *kvtx.View, dir moraine.InodeID, scopes map[moraine.InodeID]bool) (moraine.InodeID, error) {
	above, err := tree.Above(r, dir)
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

// MayName reports whether an inode is there, and in the scope of a caller's session. It is for
// what a leader looks up before the state machine judges the request.
func MayName(r *kvtx.View, caller *statepb.Caller, session moraine.SessionID, id moraine.InodeID) (bool, error) {
	v := r
	sc, err := names.ReadScope(v, caller, session)
	if kvtx.IsAnswer(err) {
		return false, nil // as it fails, so will the request
	}
	if err != nil {
		return false, err
	}
	return tree.MayName(v, sc, id)
}
