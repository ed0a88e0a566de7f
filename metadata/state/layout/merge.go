package layout

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

const (
	// mergeRefs bounds the tables that one command merges, and mergeExtents their extents. It is
	// less than a table may have, so that the next overwrite finds room.
	mergeRefs    = 64
	mergeExtents = moraine.MaxTableExtents * 3 / 4
)

// MergeTables merges some small adjacent tables in [from, to) into one, and returns up to where it
// merged; to if no more are left. Many small writes, or a concatenation of many parts, leave more
// tables than one overwrite can remove. The content stays the same. The caller writes the inode.
func MergeTables(t *kvtx.Tx, i *record.Inode, from, to int64) (int64, error) {
	var run []record.Ref
	extents, looked, upTo := 0, 0, to
	err := RefsFrom(&t.View, i.Content, from, func(r record.Ref) (bool, error) {
		if r.Base >= to {
			return false, nil
		}
		h, err := TableHead(&t.View, r.Table)
		if err != nil {
			return false, err
		}
		if extents+int(h.Count) > mergeExtents {
			if len(run) > 1 {
				upTo = r.Base
				return false, nil
			}
			run, extents = nil, 0
		}
		if looked++; looked > mergeRefs {
			upTo = r.Base
			return false, nil
		}
		if int(h.Count) <= mergeExtents {
			run, extents = append(run, r), extents+int(h.Count)
		}
		return true, nil
	})
	if err != nil || len(run) < 2 {
		return upTo, err
	}
	var all []moraine.Extent
	for _, r := range run {
		exts, err := ExtsFrom(&t.View, r, r.Base, NoLimit)
		if err != nil {
			return 0, err
		}
		all = append(all, exts...)
	}
	return upTo, swapTables(t, i, run, all)
}

// emptyPast removes everything from size on if that is in more tables than one command can name.
// The remaining part, which must be small, moves to a new content, and the old content dies. The
// caller sets the size and writes the inode.
func emptyPast(t *kvtx.Tx, i *record.Inode, size int64) error {
	var left []record.Ref
	err := RefsFrom(&t.View, i.Content, -1, func(r record.Ref) (bool, error) {
		if r.Base >= size {
			return false, nil
		}
		if len(left) == maxRangeRefs {
			return false, kvtx.Fail(moraine.TooLarge, "truncate", i.Id.String(), "the file has more than %d extent tables before byte %d, and after it: truncate in smaller steps", maxRangeRefs, size)
		}
		left = append(left, r)
		return true, nil
	})
	if err != nil {
		return err
	}
	var cutOff []moraine.Extent // extents of the table in which size lies
	last := len(left) - 1
	if last >= 0 && left[last].End > size {
		exts, err := ExtsFrom(&t.View, left[last], left[last].Base, NoLimit)
		if err != nil {
			return err
		}
		cutOff, left = Cut(exts, 0, size), left[:last]
	}
	old := i.DropContent()
	for _, r := range left {
		if i.Content == 0 {
			i.Content = t.Next(record.CContent)
		}
		h, err := TableHead(&t.View, r.Table)
		if err != nil {
			return err
		}
		t.Del(t.K.Ref(old, r.End))
		t.Put(t.K.Ref(i.Content, r.End), r.Encode())
		i.Refs++
		i.Count(h)
		i.LastEnd = r.End
	}
	if err := addTables(t, i, cutOff); err != nil {
		return err
	}
	return Discard(t, old)
}
