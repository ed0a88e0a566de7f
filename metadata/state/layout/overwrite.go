package layout

import (
	"sort"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

const (
	// maxRangeRefs bounds the tables that one overwrite or truncation removes.
	maxRangeRefs = 256
	// maxInPlace bounds the extents that an overwrite removes from a table in place. Above it the
	// table is replaced, and a job removes the old one.
	maxInPlace = 32
)

// Overlay lays exts, sorted and not overlapping, over the file's content. It works in groups: a run
// without gaps plus what follows in the same table, so that no table is rewritten twice. The caller
// writes the inode.
func Overlay(t *kvtx.Tx, i *record.Inode, exts []moraine.Extent) error {
	for len(exts) > 0 {
		n, err := overlayGroup(t, i, exts)
		if err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

// overlayGroup lays the first group of exts and returns its size.
func overlayGroup(t *kvtx.Tx, i *record.Inode, exts []moraine.Extent) (int, error) {
	if i.Refs == 0 || exts[0].Offset >= i.LastEnd {
		return len(exts), AppendExtents(t, i, exts) // gaps do not matter after the end
	}
	n := 1
	for n < len(exts) && exts[n-1].End() == exts[n].Offset {
		n++
	}
	hit, bound, err := hitRefs(&t.View, i, exts[0].Offset, exts[n-1].End())
	if err != nil {
		return 0, err
	}
	for n < len(exts) && exts[n].End() <= bound {
		n++
	}
	if len(hit) == 0 {
		return n, addTables(t, i, exts[:n])
	}
	old, err := edges(&t.View, hit)
	if err != nil {
		return 0, err
	}
	return n, rewrite(t, i, hit, old, lay(old, exts[:n]))
}

// Truncate removes the content from size on. The caller sets the size and writes the inode.
func Truncate(t *kvtx.Tx, i *record.Inode, size int64) error {
	hit, _, err := hitRefs(&t.View, i, size, tree.MaxFileSize)
	if moraine.KindOf(err) == moraine.TooLarge {
		return emptyPast(t, i, size)
	}
	if err != nil || len(hit) == 0 {
		return err
	}
	old, err := edges(&t.View, hit[:1])
	if err != nil {
		return err
	}
	if err := rewrite(t, i, hit, old, Cut(old, 0, size)); err != nil {
		return err
	}
	i.LastEnd = min(i.LastEnd, size)
	return nil
}

// hitRefs returns the references that overlap [lo, hi). Extents that end at or
// before bound overlap no later reference. bound is the end of the last returned
// reference, or the start of the next one if none is returned.
func hitRefs(v *kvtx.View, i *record.Inode, lo, hi int64) (hit []record.Ref, bound int64, err error) {
	bound = tree.MaxFileSize
	err = RefsFrom(v, i.Content, lo, func(r record.Ref) (bool, error) {
		if r.Base >= hi {
			if len(hit) == 0 {
				bound = r.Base
			}
			return false, nil
		}
		if len(hit) == maxRangeRefs {
			return false, kvtx.Fail(moraine.TooLarge, "overwrite", i.Id.String(), "the range has more than %d extent tables: write smaller ranges", maxRangeRefs)
		}
		hit, bound = append(hit, r), r.End
		return true, nil
	})
	return hit, bound, err
}

// edges returns the extents of the first and the last of some references; the range covers those
// between entirely.
func edges(v *kvtx.View, hit []record.Ref) ([]moraine.Extent, error) {
	old, err := ExtsFrom(v, hit[0], hit[0].Base, NoLimit)
	if err != nil || len(hit) == 1 {
		return old, err
	}
	r := hit[len(hit)-1]
	last, err := ExtsFrom(v, r, r.Base, NoLimit)
	return append(old, last...), err
}

// rewrite makes now the content in the ranges of the references hit; old are the extents of their
// first and last table. It edits in place if it may.
func rewrite(t *kvtx.Tx, i *record.Inode, hit []record.Ref, old, now []moraine.Extent) error {
	if len(hit) == 1 {
		if ok, err := editTable(t, i, hit[0], old, now); ok || err != nil {
			return err
		}
	}
	return swapTables(t, i, hit, now)
}

// lay returns old with exts laid over it. Both are sorted.
func lay(old, exts []moraine.Extent) []moraine.Extent {
	out := make([]moraine.Extent, 0, len(old)+2*len(exts))
	from := int64(0)
	for _, e := range exts {
		out = append(append(out, Cut(old, from, e.Offset)...), e)
		from = e.End()
	}
	return append(out, Cut(old, from, tree.MaxFileSize)...)
}

// Cut returns the parts of the sorted exts in [lo, hi).
func Cut(exts []moraine.Extent, lo, hi int64) []moraine.Extent {
	var out []moraine.Extent
	for _, e := range exts {
		if d := lo - e.Offset; d > 0 {
			if d >= e.Length {
				continue
			}
			e.Offset, e.StripeOffset, e.Length = lo, e.StripeOffset+d, e.Length-d
		}
		if e.Offset >= hi {
			break
		}
		e.Length = min(e.Length, hi-e.Offset)
		out = append(out, e)
	}
	return out
}

// swapTables replaces the references hit by tables of exts. The old tables die at the end of the
// command, or by a job if they are many.
func swapTables(t *kvtx.Tx, i *record.Inode, hit []record.Ref, exts []moraine.Extent) error {
	for _, r := range hit {
		h, err := TableHead(&t.View, r.Table)
		if err != nil {
			return err
		}
		i.Uncount(h)
		i.Refs--
		t.Del(t.K.Ref(i.Content, r.End))
		abandon(t, r.Table)
	}
	// The new tables count their stripes before the old ones release them, so that stripes in both
	// do not die. They have even sizes, because the next overwrite would split a full table.
	parts := (len(exts) + moraine.MaxTableExtents - 1) / moraine.MaxTableExtents
	for ; parts > 0; parts-- {
		n := (len(exts) + parts - 1) / parts
		if err := addTables(t, i, exts[:n]); err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

// editTable makes now the extents of a table in place, if the file is its only owner and the change
// is small. Otherwise it returns false and changes nothing. old are all extents of the table.
func editTable(t *kvtx.Tx, i *record.Inode, r record.Ref, old, now []moraine.Extent) (bool, error) {
	h, err := TableHead(&t.View, r.Table)
	if err != nil || h.Sealed || h.Refs != 1 {
		return false, err
	}
	if len(now) == 0 || len(now) > moraine.MaxTableExtents || now[0].Offset < r.Base {
		return false, nil
	}
	gone := minus(old, now)
	if len(gone) > maxInPlace {
		return false, nil
	}
	// Delete old keys first: a remaining part may have the same end as the extent that it was cut
	// from.
	for _, e := range gone {
		t.Del(t.K.Ext(r.Table, e.End()-r.Base))
	}
	for _, e := range minus(now, old) {
		t.Put(t.K.Ext(r.Table, e.End()-r.Base), record.EncodeExt(e))
	}
	if err := recount(t, r.Table, old, now); err != nil {
		return false, err
	}
	i.Uncount(h)
	h.Count, h.Bytes, h.Evicted, h.Inline = uint32(len(now)), SumLengths(now), SumEvicted(now), SumInline(now)
	i.Count(h)
	t.Put(t.K.ExtTable(r.Table), h.Encode())
	if end := now[len(now)-1].End(); end != r.End {
		t.Del(t.K.Ref(i.Content, r.End))
		if i.LastEnd == r.End {
			i.LastEnd = end
		}
		r.End = end
		t.Put(t.K.Ref(i.Content, end), r.Encode())
	}
	i.LastEnd = max(i.LastEnd, r.End)
	return true, nil
}

// minus returns the extents of a that are not identically in b. Both are sorted.
func minus(a, b []moraine.Extent) []moraine.Extent {
	var out []moraine.Extent
	for _, e := range a {
		n := sort.Search(len(b), func(n int) bool { return b[n].Offset >= e.Offset })
		if n == len(b) || b[n] != e {
			out = append(out, e)
		}
	}
	return out
}

// SumEvicted counts the bytes that are in objects.
func SumEvicted(exts []moraine.Extent) (n int64) {
	for _, e := range exts {
		if e.Object != 0 {
			n += e.Length
		}
	}
	return n
}

// SumLengths returns the sum of the extents' lengths.
func SumLengths(exts []moraine.Extent) (n int64) {
	for _, e := range exts {
		n += e.Length
	}
	return n
}

// recount updates the counts of stripes and objects when a table's extents change from old to now.
func recount(t *kvtx.Tx, table moraine.TableID, old, now []moraine.Extent) error {
	was, is := bytesBySource(old), bytesBySource(now)
	for _, e := range now {
		if _, ok := was[sourceOf(e)]; ok {
			continue
		}
		if err := use(t, sourceOf(e), table); err != nil {
			return err
		}
	}
	done := make(map[kvtx.Source]bool)
	for _, e := range old { // in file order, so that every replica does the same
		s := sourceOf(e)
		left, kept := is[s]
		if done[s] || (kept && left == was[s]) {
			continue
		}
		done[s] = true
		if kept {
			if err := shrink(t, s, was[s], left); err != nil {
				return err
			}
			continue
		}
		if err := releaseSource(t, s); err != nil {
			return err
		}
	}
	return nil
}

func bytesBySource(exts []moraine.Extent) map[kvtx.Source]int64 {
	out := make(map[kvtx.Source]int64, len(exts))
	for _, e := range exts {
		out[sourceOf(e)] += e.Length
	}
	return out
}
