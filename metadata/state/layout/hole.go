package layout

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// Punch makes [lo, hi) a hole. A table may still reach over it. The caller writes the inode.
func Punch(t *kvtx.Tx, i *record.Inode, lo, hi int64) error {
	return punch(t, i, lo, hi, func(hit []record.Ref, old, before, after []moraine.Extent) error {
		return rewrite(t, i, hit, old, append(before, after...))
	})
}

// Clear makes [lo, hi) a hole over which no table reaches, so that other tables can lie there. The
// caller writes the inode.
func Clear(t *kvtx.Tx, i *record.Inode, lo, hi int64) error {
	return punch(t, i, lo, hi, func(hit []record.Ref, _, before, after []moraine.Extent) error {
		if err := swapTables(t, i, hit, before); err != nil {
			return err
		}
		return addTables(t, i, after)
	})
}

// punch finds what remains of the tables that reach into [lo, hi), before it and after it, and calls
// replace. old are the extents of the first and the last table.
func punch(t *kvtx.Tx, i *record.Inode, lo, hi int64, replace func(hit []record.Ref, old, before, after []moraine.Extent) error) error {
	hit, _, err := hitRefs(&t.View, i, lo, hi)
	if err != nil || len(hit) == 0 {
		return err
	}
	old, err := edges(&t.View, hit)
	if err != nil {
		return err
	}
	if err := replace(hit, old, Cut(old, 0, lo), Cut(old, hi, tree.MaxFileSize)); err != nil {
		return err
	}
	if hi >= i.LastEnd {
		i.LastEnd = min(i.LastEnd, lo)
	}
	return nil
}
