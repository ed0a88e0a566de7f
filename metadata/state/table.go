package state

import (
	"errors"
	"math"

	"github.com/morainefs/moraine"
)

// A file's content is a list of references to extent tables, each keyed by
// where its range of the file ends; a table is at most MaxTableExtents
// extents, each keyed by where it ends in the table. Ranges of references do
// not overlap, nor do extents; what none covers is a hole. Tables with more
// than one reference are sealed: they never change again, and an overwrite
// makes a new one.

// ref is one reference of a content: the table's offset 0 is at base of the
// file.
type ref struct {
	table moraine.TableID
	base  int64
	end   int64 // in the key
}

const refVersion = 1

func (r ref) encode() []byte {
	return putUvarint(putFixed64(newValue(refVersion, 16), uint64(r.table)), uint64(r.base))
}

func decodeRef(key, value []byte) (ref, error) {
	d := dec{b: value}
	d.version(refVersion)
	r := ref{table: moraine.TableID(d.fixed64()), base: int64(d.uvarint()), end: int64(lastU64(key))}
	return r, d.end("table reference")
}

// tableHead is the header of an extent table. refs 0 marks a table that is
// being taken apart.
type tableHead struct {
	refs   uint32
	count  uint32
	bytes  int64 // sum of the extents' lengths
	sealed bool
	// evicted is how many of the bytes are in objects.
	evicted int64
}

const tableVersion = 1

func (h tableHead) encode() []byte {
	b := putUvarint(newValue(tableVersion, 16), uint64(h.refs))
	b = putUvarint(b, uint64(h.count))
	b = putBool(putUvarint(b, uint64(h.bytes)), h.sealed)
	return putUvarint(b, uint64(h.evicted))
}

func decodeTableHead(b []byte) (tableHead, error) {
	d := dec{b: b}
	d.version(tableVersion)
	h := tableHead{refs: d.u32(), count: d.u32(), bytes: int64(d.uvarint())}
	h.sealed = d.bool()
	h.evicted = int64(d.uvarint())
	return h, d.end("extent table")
}

func (v *view) tableHead(id moraine.TableID) (tableHead, error) {
	b, ok, err := v.r.Get(v.k.extTable(id))
	if err != nil {
		return tableHead{}, err
	}
	if !ok {
		return tableHead{}, &moraine.Error{Op: "extent table", Ref: id.String(), Kind: moraine.Corrupt}
	}
	return decodeTableHead(b)
}

// Extents in a table are relative to it. Their value has the length; the key
// has the end. The lowest bit of the length's number says that the bytes are in an object.

const extVersion = 1

func encodeExt(e moraine.Extent) []byte {
	length, id := uint64(e.Length)<<1, uint64(e.Stripe)
	if e.Object != 0 {
		length, id = length|1, uint64(e.Object)
	}
	b := putUvarint(newValue(extVersion, 24), length)
	return putUvarint(putFixed64(b, id), uint64(e.StripeOffset))
}

// decodeExt returns an extent of a table whose offset 0 is at base of the file.
func decodeExt(key, value []byte, base int64) (moraine.Extent, error) {
	d := dec{b: value}
	d.version(extVersion)
	var e moraine.Extent
	length := d.uvarint()
	e.Length = int64(length >> 1)
	e.Offset = base + int64(lastU64(key)) - e.Length
	if id := d.fixed64(); length&1 == 0 {
		e.Stripe = moraine.StripeID(id)
	} else if e.Object = moraine.ObjectID(id); id == 0 {
		d.fail(errNoObject)
	}
	e.StripeOffset = int64(d.uvarint())
	return e, d.end("extent")
}

var errNoObject = errors.New("an extent of no object")

// refsFrom calls fn with the references whose ranges end past from, in order.
func (v *view) refsFrom(content uint64, from int64, fn func(ref) (more bool, err error)) error {
	if content == 0 {
		return nil
	}
	var bad error
	lo := v.k.ref(content, from+1)
	err := v.r.Scan(lo, prefixEnd(v.k.refs(content)), func(key, value []byte) bool {
		var r ref
		if r, bad = decodeRef(key, value); bad != nil {
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
func (v *view) extsFrom(r ref, from int64, limit int) ([]moraine.Extent, error) {
	var out []moraine.Extent
	var bad error
	lo := v.k.ext(r.table, max(from-r.base, 0)+1)
	err := v.r.Scan(lo, prefixEnd(v.k.exts(r.table)), func(key, value []byte) bool {
		var e moraine.Extent
		if e, bad = decodeExt(key, value, r.base); bad != nil {
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
func (m *Machine) appendExtents(t *tx, i *inode, exts []moraine.Extent) error {
	if i.refs > 0 && len(exts) > 0 {
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
func (m *Machine) growLast(t *tx, i *inode, exts []moraine.Extent) (int, error) {
	key := t.k.ref(i.content, i.lastEnd)
	b, ok, err := t.Get(key)
	if err != nil || !ok {
		return 0, err // the last one was cut off: lastEnd is only a bound
	}
	r, err := decodeRef(key, b)
	if err != nil {
		return 0, err
	}
	h, err := t.tableHead(r.table)
	if err != nil || h.sealed || h.refs != 1 || h.count >= moraine.MaxTableExtents {
		return 0, err
	}
	n := min(len(exts), moraine.MaxTableExtents-int(h.count))
	if err := m.fillTable(t, r, exts[:n]); err != nil {
		return 0, err
	}
	i.uncount(h)
	h.count += uint32(n)
	h.bytes += sumLengths(exts[:n])
	h.evicted += sumEvicted(exts[:n])
	i.count(h)
	t.put(t.k.extTable(r.table), h.encode())
	t.del(key)
	r.end = exts[n-1].End()
	t.put(t.k.ref(i.content, r.end), r.encode())
	i.lastEnd = r.end
	return n, nil
}

// fillTable writes extents into a table, and counts it as a user of their
// stripes and objects.
func (m *Machine) fillTable(t *tx, r ref, exts []moraine.Extent) error {
	for _, e := range exts {
		if err := t.use(sourceOf(e), r.table); err != nil {
			return err
		}
		t.put(t.k.ext(r.table, e.End()-r.base), encodeExt(e))
	}
	return nil
}

// addTables makes tables of exts and refers to them; the range that they cover
// must be free of references.
func (m *Machine) addTables(t *tx, i *inode, exts []moraine.Extent) error {
	for len(exts) > 0 {
		n := min(len(exts), moraine.MaxTableExtents)
		if err := m.addTable(t, i, exts[:n]); err != nil {
			return err
		}
		exts = exts[n:]
	}
	return nil
}

func (m *Machine) addTable(t *tx, i *inode, exts []moraine.Extent) error {
	id, err := t.nextID(cTable)
	if err != nil {
		return err
	}
	if i.content == 0 {
		i.content = t.next(cContent)
	}
	r := ref{table: moraine.TableID(id), base: exts[0].Offset, end: exts[len(exts)-1].End()}
	if err := m.fillTable(t, r, exts); err != nil {
		return err
	}
	h := tableHead{refs: 1, count: uint32(len(exts)), bytes: sumLengths(exts), evicted: sumEvicted(exts)}
	t.insert(t.k.extTable(r.table), h.encode())
	t.put(t.k.ref(i.content, r.end), r.encode())
	i.refs++
	i.count(h)
	i.lastEnd = max(i.lastEnd, r.end)
	return nil
}

// noLimit is for reads of one table, which has a bound of its own.
const noLimit = math.MaxInt
