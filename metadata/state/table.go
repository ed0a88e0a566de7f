package state

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

func (v *view) tableHead(id moraine.TableID) (record.TableHead, error) {
	b, ok, err := v.r.Get(v.k.extTable(id))
	if err != nil {
		return record.TableHead{}, err
	}
	if !ok {
		return record.TableHead{}, &moraine.Error{Op: "extent table", Ref: id.String(), Kind: moraine.Corrupt}
	}
	return record.DecodeTableHead(b)
}

// refsFrom calls fn with the references whose ranges end past from, in order.
func (v *view) refsFrom(content uint64, from int64, fn func(record.Ref) (more bool, err error)) error {
	if content == 0 {
		return nil
	}
	var bad error
	lo := v.k.ref(content, from+1)
	err := v.r.Scan(lo, prefixEnd(v.k.refs(content)), func(key, value []byte) bool {
		var r record.Ref
		if r, bad = record.DecodeRef(key, value); bad != nil {
			return false
		}
		var more bool
		more, bad = fn(r)
		return more && bad == nil
	})
	if err != nil {
		return err
	}
	return bad
}

// extsFrom returns at most limit extents of a reference's table that end past
// from, with offsets of the file.
func (v *view) extsFrom(r record.Ref, from int64, limit int) ([]moraine.Extent, error) {
	var out []moraine.Extent
	var bad error
	lo := v.k.ext(r.Table, max(from-r.Base, 0)+1)
	err := v.r.Scan(lo, prefixEnd(v.k.exts(r.Table)), func(key, value []byte) bool {
		var e moraine.Extent
		if e, bad = record.DecodeExt(key, value, r.Base); bad != nil {
			return false
		}
		out = append(out, e)
		return len(out) < limit
	})
	if err != nil {
		return nil, err
	}
	return out, bad
}

// appendExtents puts extents past all that the file has, into its last table
// while the file is its sole owner and there is room, and into new ones after
// that.
func (m *Machine) appendExtents(t *tx, i *record.Inode, exts []moraine.Extent) error {
	if i.Refs > 0 && len(exts) > 0 {
		n, err := m.growLast(t, i, exts)
		if err != nil {
			return err
		}
		exts = exts[n:]
	}
	return m.addTables(t, i, exts)
}

// growLast puts as many of exts as there is room for into the last table of i,
// if i alone refers to it, and returns how many.
func (m *Machine) growLast(t *tx, i *record.Inode, exts []moraine.Extent) (int, error) {
	key := t.k.ref(i.Content, i.LastEnd)
	b, ok, err := t.Get(key)
	if err != nil || !ok {
		return 0, err // the last one was cut off: lastEnd is only a bound
	}
	r, err := record.DecodeRef(key, b)
	if err != nil {
		return 0, err
	}
	h, err := t.tableHead(r.Table)
	if err != nil || h.Sealed || h.Refs != 1 || h.Count >= moraine.MaxTableExtents {
		return 0, err
	}
	n := min(len(exts), moraine.MaxTableExtents-int(h.Count))
	if err := m.fillTable(t, r, exts[:n]); err != nil {
		return 0, err
	}
	i.Uncount(h)
	h.Count += uint32(n)
	h.Bytes += sumLengths(exts[:n])
	h.Evicted += sumEvicted(exts[:n])
	i.Count(h)
	t.put(t.k.extTable(r.Table), h.Encode())
	t.del(key)
	r.End = exts[n-1].End()
	t.put(t.k.ref(i.Content, r.End), r.Encode())
	i.LastEnd = r.End
	return n, nil
}

// fillTable writes extents into a table, and counts it as a user of their
// stripes and objects.
func (m *Machine) fillTable(t *tx, r record.Ref, exts []moraine.Extent) error {
	for _, e := range exts {
		if err := t.use(sourceOf(e), r.Table); err != nil {
			return err
		}
		t.put(t.k.ext(r.Table, e.End()-r.Base), record.EncodeExt(e))
	}
	return nil
}

// addTables makes tables of exts and refers to them; the range that they cover
// must be free of references.
func (m *Machine) addTables(t *tx, i *record.Inode, exts []moraine.Extent) error {
	for len(exts) > 0 {
		n := min(len(exts), moraine.MaxTableExtents)
		if err := m.addTable(t, i, exts[:n]); err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

func (m *Machine) addTable(t *tx, i *record.Inode, exts []moraine.Extent) error {
	id, err := t.nextID(record.CTable)
	if err != nil {
		return err
	}
	if i.Content == 0 {
		i.Content = t.next(record.CContent)
	}
	r := record.Ref{Table: moraine.TableID(id), Base: exts[0].Offset, End: exts[len(exts)-1].End()}
	if err := m.fillTable(t, r, exts); err != nil {
		return err
	}
	h := record.TableHead{Refs: 1, Count: uint32(len(exts)), Bytes: sumLengths(exts), Evicted: sumEvicted(exts)}
	t.insert(t.k.extTable(r.Table), h.Encode())
	t.put(t.k.ref(i.Content, r.End), r.Encode())
	i.Refs++
	i.Count(h)
	i.LastEnd = max(i.LastEnd, r.End)
	return nil
}

// noLimit is for reads of one table, which has a bound of its own.
const noLimit = math.MaxInt
