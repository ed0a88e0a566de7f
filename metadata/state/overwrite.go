package state

import (
	"sort"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

const (
	// maxRangeRefs bounds how many tables one overwrite or truncation drops.
	maxRangeRefs = 256
	// maxInPlace bounds how many extents an overwrite takes out of a table in
	// place; past it the table is replaced, and the old one dropped by a job.
	maxInPlace = 32
)

// overlay lays exts, in order and not overlapping, over what the file has. It
// goes group by group: each is a run without gaps and what follows it within
// the same table, so that no table is rewritten twice. The caller writes the
// inode.
func (m *Machine) overlay(t *tx, i *record.Inode, exts []moraine.Extent) error {
	for len(exts) > 0 {
		n, err := m.overlayGroup(t, i, exts)
		if err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

// overlayGroup lays the first group of exts and returns how many it has.
func (m *Machine) overlayGroup(t *tx, i *record.Inode, exts []moraine.Extent) (int, error) {
	if i.Refs == 0 || exts[0].Offset >= i.LastEnd {
		return len(exts), m.appendExtents(t, i, exts) // past the end gaps do not matter
	}
	n := 1
	for n < len(exts) && exts[n-1].End() == exts[n].Offset {
		n++
	}
	hit, bound, err := t.hitRefs(i, exts[0].Offset, exts[n-1].End())
	if err != nil {
		return 0, err
	}
	for n < len(exts) && exts[n].End() <= bound {
		n++
	}
	if len(hit) == 0 {
		return n, m.addTables(t, i, exts[:n])
	}
	old, err := t.edges(hit)
	if err != nil {
		return 0, err
	}
	return n, m.rewrite(t, i, hit, old, lay(old, exts[:n]))
}

// truncate takes away all that the file has from size on. The caller sets the
// size and writes the inode.
func (m *Machine) truncate(t *tx, i *record.Inode, size int64) error {
	hit, _, err := t.hitRefs(i, size, MaxFileSize)
	if moraine.KindOf(err) == moraine.TooLarge {
		return m.emptyPast(t, i, size)
	}
	if err != nil || len(hit) == 0 {
		return err
	}
	old, err := t.edges(hit[:1])
	if err != nil {
		return err
	}
	if err := m.rewrite(t, i, hit, old, cut(old, 0, size)); err != nil {
		return err
	}
	i.LastEnd = min(i.LastEnd, size)
	return nil
}

// hitRefs returns the references that overlap [lo, hi), and up to where further
// extents concern none but the last of them: its end, or where none is hit the
// start of the next one.
func (v *view) hitRefs(i *record.Inode, lo, hi int64) (hit []record.Ref, bound int64, err error) {
	bound = MaxFileSize
	err = v.refsFrom(i.Content, lo, func(r record.Ref) (bool, error) {
		if r.Base >= hi {
			if len(hit) == 0 {
				bound = r.Base
			}
			return false, nil
		}
		if len(hit) == maxRangeRefs {
			return false, fail(moraine.TooLarge, "overwrite", i.Id.String(), "the range has more than %d extent tables: go in smaller steps", maxRangeRefs)
		}
		hit, bound = append(hit, r), r.End
		return true, nil
	})
	return hit, bound, err
}

// edges returns the extents of the first and the last of some references: those
// between them are covered whole.
func (v *view) edges(hit []record.Ref) ([]moraine.Extent, error) {
	old, err := v.extsFrom(hit[0], hit[0].Base, noLimit)
	if err != nil || len(hit) == 1 {
		return old, err
	}
	r := hit[len(hit)-1]
	last, err := v.extsFrom(r, r.Base, noLimit)
	return append(old, last...), err
}

// rewrite makes now all that the file has in the ranges of the references hit;
// old is what their first and last table hold. It edits in place where it may.
func (m *Machine) rewrite(t *tx, i *record.Inode, hit []record.Ref, old, now []moraine.Extent) error {
	if len(hit) == 1 {
		if ok, err := m.editTable(t, i, hit[0], old, now); ok || err != nil {
			return err
		}
	}
	return m.swapTables(t, i, hit, now)
}

// lay returns old with exts over it. Both are in order.
func lay(old, exts []moraine.Extent) []moraine.Extent {
	out := make([]moraine.Extent, 0, len(old)+2*len(exts))
	from := int64(0)
	for _, e := range exts {
		out = append(append(out, cut(old, from, e.Offset)...), e)
		from = e.End()
	}
	return append(out, cut(old, from, MaxFileSize)...)
}

// cut returns the parts of exts, in order, that lie in [lo, hi).
func cut(exts []moraine.Extent, lo, hi int64) []moraine.Extent {
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

// swapTables puts tables of exts in the place of the references hit. The old
// tables die at the end of the command, or by a job where they are many.
func (m *Machine) swapTables(t *tx, i *record.Inode, hit []record.Ref, exts []moraine.Extent) error {
	for _, r := range hit {
		h, err := t.tableHead(r.Table)
		if err != nil {
			return err
		}
		i.Uncount(h)
		i.Refs--
		t.del(t.k.ref(i.Content, r.End))
		t.abandon(r.Table)
	}
	// The new tables count their stripes before the old ones let go of them, so
	// that what is kept does not die in between. They are of even size: a table
	// that was full would only be split again by the next overwrite.
	parts := (len(exts) + moraine.MaxTableExtents - 1) / moraine.MaxTableExtents
	for ; parts > 0; parts-- {
		n := (len(exts) + parts - 1) / parts
		if err := m.addTables(t, i, exts[:n]); err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

// editTable makes now the extents of a table in place, where the file is its
// sole owner and the change is small; else it returns false and changes nothing.
// old is all that the table has.
func (m *Machine) editTable(t *tx, i *record.Inode, r record.Ref, old, now []moraine.Extent) (bool, error) {
	h, err := t.tableHead(r.Table)
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
	// Old keys go first: a part that is kept may have the end of what it was cut
	// from.
	for _, e := range gone {
		t.del(t.k.ext(r.Table, e.End()-r.Base))
	}
	for _, e := range minus(now, old) {
		t.put(t.k.ext(r.Table, e.End()-r.Base), record.EncodeExt(e))
	}
	if err := m.recount(t, r.Table, old, now); err != nil {
		return false, err
	}
	i.Uncount(h)
	h.Count, h.Bytes, h.Evicted = uint32(len(now)), sumLengths(now), sumEvicted(now)
	i.Count(h)
	t.put(t.k.extTable(r.Table), h.Encode())
	if end := now[len(now)-1].End(); end != r.End {
		t.del(t.k.ref(i.Content, r.End))
		if i.LastEnd == r.End {
			i.LastEnd = end
		}
		r.End = end
		t.put(t.k.ref(i.Content, end), r.Encode())
	}
	i.LastEnd = max(i.LastEnd, r.End)
	return true, nil
}

// minus returns the extents of a that b does not have just so. Both are in
// order.
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

// sumEvicted counts the bytes that are in objects.
func sumEvicted(exts []moraine.Extent) (n int64) {
	for _, e := range exts {
		if e.Object != 0 {
			n += e.Length
		}
	}
	return n
}

func sumLengths(exts []moraine.Extent) (n int64) {
	for _, e := range exts {
		n += e.Length
	}
	return n
}

// recount brings the counts of stripes and objects in step with a table whose
// extents change from old to now.
func (m *Machine) recount(t *tx, table moraine.TableID, old, now []moraine.Extent) error {
	was, is := bytesBySource(old), bytesBySource(now)
	for _, e := range now {
		if _, ok := was[sourceOf(e)]; ok {
			continue
		}
		if err := t.use(sourceOf(e), table); err != nil {
			return err
		}
	}
	done := make(map[source]bool)
	for _, e := range old { // in order of the file, so that every replica does the same
		s := sourceOf(e)
		left, kept := is[s]
		if done[s] || (kept && left == was[s]) {
			continue
		}
		done[s] = true
		if kept {
			if err := t.shrink(s, was[s], left); err != nil {
				return err
			}
			continue
		}
		if err := m.releaseSource(t, s); err != nil {
			return err
		}
	}
	return nil
}

func bytesBySource(exts []moraine.Extent) map[source]int64 {
	out := make(map[source]int64, len(exts))
	for _, e := range exts {
		out[sourceOf(e)] += e.Length
	}
	return out
}
