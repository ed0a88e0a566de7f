package layout

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// TableHead returns the header of a table.
func TableHead(v *kvtx.View, id moraine.TableID) (record.TableHead, error) {
	b, ok, err := v.R.Get(v.K.ExtTable(id))
	if err != nil {
		return record.TableHead{}, err
	}
	if !ok {
		return record.TableHead{}, kvtx.Corrupt("extent table", id.String(), "a file refers to the table, which has no record")
	}
	return record.DecodeTableHead(b)
}

// RefsFrom calls fn with the references whose ranges end after from, in order.
func RefsFrom(v *kvtx.View, content uint64, from int64, fn func(record.Ref) (more bool, err error)) error {
	if content == 0 {
		return nil
	}
	return v.Each(v.K.Ref(content, from+1), kvtx.PrefixEnd(v.K.Refs(content)), func(key, value []byte) (bool, error) {
		r, err := record.DecodeRef(key, value)
		if err != nil {
			return false, err
		}
		return fn(r)
	})
}

// ExtsFrom returns at most limit extents of a reference's table that end after from, with offsets
// in the file.
func ExtsFrom(v *kvtx.View, r record.Ref, from int64, limit int) ([]moraine.Extent, error) {
	var out []moraine.Extent
	lo := v.K.Ext(r.Table, max(from-r.Base, 0)+1)
	err := v.Each(lo, kvtx.PrefixEnd(v.K.Exts(r.Table)), func(key, value []byte) (bool, error) {
		e, err := record.DecodeExt(key, value, r.Base)
		out = append(out, e)
		return len(out) < limit, err
	})
	return out, err
}

// AppendExtents adds extents after the end of the content. It fills the last table if the file is
// its only owner and it has room, and then adds new ones.
func AppendExtents(t *kvtx.Tx, i *record.Inode, exts []moraine.Extent) error {
	if i.Refs > 0 && len(exts) > 0 {
		n, err := growLast(t, i, exts)
		if err != nil {
			return err
		}
		exts = exts[n:]
	}
	return addTables(t, i, exts)
}

// growLast adds as many of exts as fit to the last table of i, if only i refers to it, and returns
// how many.
func growLast(t *kvtx.Tx, i *record.Inode, exts []moraine.Extent) (int, error) {
	key := t.K.Ref(i.Content, i.LastEnd)
	b, ok, err := t.Get(key)
	if err != nil || !ok {
		return 0, err // the last one was truncated: LastEnd is only a bound
	}
	r, err := record.DecodeRef(key, b)
	if err != nil {
		return 0, err
	}
	h, err := TableHead(&t.View, r.Table)
	if err != nil || h.Sealed || h.Refs != 1 || h.Count >= moraine.MaxTableExtents {
		return 0, err
	}
	n := min(len(exts), moraine.MaxTableExtents-int(h.Count))
	if err := fillTable(t, r, exts[:n]); err != nil {
		return 0, err
	}
	i.Uncount(h)
	h.Count += uint32(n)
	h.Bytes += SumLengths(exts[:n])
	h.Evicted += SumEvicted(exts[:n])
	h.Inline += SumInline(exts[:n])
	i.Count(h)
	t.Put(t.K.ExtTable(r.Table), h.Encode())
	t.Del(key)
	r.End = exts[n-1].End()
	t.Put(t.K.Ref(i.Content, r.End), r.Encode())
	i.LastEnd = r.End
	return n, nil
}

// fillTable writes extents into a table and counts it as a user of their stripes and objects.
func fillTable(t *kvtx.Tx, r record.Ref, exts []moraine.Extent) error {
	for _, e := range exts {
		if err := use(t, sourceOf(e), r.Table); err != nil {
			return err
		}
		t.Put(t.K.Ext(r.Table, e.End()-r.Base), record.EncodeExt(e))
	}
	return nil
}

// addTables makes tables of exts and refers to them. The range that they cover must be free of
// references.
func addTables(t *kvtx.Tx, i *record.Inode, exts []moraine.Extent) error {
	for len(exts) > 0 {
		n := min(len(exts), moraine.MaxTableExtents)
		if err := AddTable(t, i, exts[:n]); err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

// AddTable makes one table of exts and refers to it.
func AddTable(t *kvtx.Tx, i *record.Inode, exts []moraine.Extent) error {
	id, err := t.NextID(record.CTable)
	if err != nil {
		return err
	}
	if i.Content == 0 {
		i.Content = t.Next(record.CContent)
	}
	r := record.Ref{Table: moraine.TableID(id), Base: exts[0].Offset, End: exts[len(exts)-1].End()}
	if err := fillTable(t, r, exts); err != nil {
		return err
	}
	h := record.TableHead{Refs: 1, Count: uint32(len(exts)), Bytes: SumLengths(exts), Evicted: SumEvicted(exts), Inline: SumInline(exts)}
	t.Insert(t.K.ExtTable(r.Table), h.Encode())
	t.Put(t.K.Ref(i.Content, r.End), r.Encode())
	i.Refs++
	i.Count(h)
	i.LastEnd = max(i.LastEnd, r.End)
	return nil
}

// NoLimit is for reads of one table, whose size is bounded.
const NoLimit = math.MaxInt
