package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// A stripe is made for one file, or for several files below one directory. Its origin names that
// file or directory. A session that may name the origin may read the whole stripe. Another session
// has the stripe by a clone, or its file was renamed away from the pack. It reads only the ranges
// that its file's extents name.

// setOrigin sets the origin of the stripes of a rewriting: its file, or the nearest directory
// above its files.
func (w *rewriteWork) setOrigin(t *kvtx.Tx) error {
	if len(w.files) == 1 {
		w.all.setOrigin(w.files[0].i.Id)
		return nil
	}
	var common []moraine.InodeID // ordered from the nearest directory up
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
	w.all.setOrigin(append(common, t.K.Top())[0])
	return nil
}

func (w *commitWork) setOrigin(id moraine.InodeID) {
	for _, s := range w.stripes {
		s.Origin = id
	}
}

// PackDomain returns the directory below which files of dir are packed together. It is the nearest
// directory to which a session is confined, otherwise the one at depth packDepth, since scopes are
// seldom deeper. A session confined to less can read the packed bytes, but cannot rebuild them.
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

// packDepth is the depth below the root of a directory whose files, with those of its
// subdirectories, are packed together.
const packDepth = 2
