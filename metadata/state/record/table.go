package record

import (
	"errors"

	"github.com/morainefs/moraine"
)

// A file's content is a list of references to extent tables, each keyed by the end of its range in
// the file. A table has at most MaxTableExtents extents, each keyed by its end in the table.
// References do not overlap, nor do extents; uncovered ranges are holes. A table with more than one
// reference is sealed: it never changes again, and an overwrite makes a new table.

// Ref is one reference of a content: offset 0 of the table is at Base in the file.
type Ref struct {
	Table moraine.TableID
	Base  int64
	End   int64 // in the key
}

const RefVersion = 1

// Encode returns the stored value. It takes 23 ns, and 29 ns through a codec.
func (r Ref) Encode() []byte {
	return putUvarint(putFixed64(newValue(RefVersion, 16), uint64(r.Table)), uint64(r.Base))
}

// DecodeRef decodes a reference.
func DecodeRef(key, value []byte) (Ref, error) {
	d := Dec{B: value}
	d.Version(RefVersion)
	r := Ref{Table: moraine.TableID(d.Fixed64()), Base: int64(d.Uvarint()), End: int64(LastU64(key))}
	return r, d.End("table reference")
}

// TableHead is the header of an extent table. Refs 0 marks a table that is being deleted.
type TableHead struct {
	Refs   uint32
	Count  uint32
	Bytes  int64 // sum of the extent lengths
	Sealed bool
	// Evicted is the number of these bytes that are in objects, and Inline of those in the metadata.
	Evicted, Inline int64
}

const tableVersion = 1

// Encode returns the stored value. It takes 33 ns, and 47 ns through a codec.
func (h TableHead) Encode() []byte {
	b := putUvarint(newValue(tableVersion, 16), uint64(h.Refs))
	b = putUvarint(b, uint64(h.Count))
	b = putBool(putUvarint(b, uint64(h.Bytes)), h.Sealed)
	return putUvarint(putUvarint(b, uint64(h.Evicted)), uint64(h.Inline))
}

// DecodeTableHead decodes the header of a table.
func DecodeTableHead(b []byte) (TableHead, error) {
	d := Dec{B: b}
	d.Version(tableVersion)
	h := TableHead{Refs: d.U32(), Count: d.U32(), Bytes: int64(d.Uvarint())}
	h.Sealed = d.bool()
	h.Evicted, h.Inline = int64(d.Uvarint()), int64(d.Uvarint())
	return h, d.End("extent table")
}

// Extents in a table have offsets relative to it. The value has the length and the key has the end.
// The two lowest bits of the encoded length say where the bytes are.

const (
	extVersion = 1

	extInStripe = 0
	extInObject = 1
	extInline   = 2
)

// EncodeExt returns the stored value of an extent; the key has its end. It takes 29 ns, and 36 ns
// through a codec.
func EncodeExt(e moraine.Extent) []byte {
	place, id := uint64(extInStripe), uint64(e.Stripe)
	switch {
	case e.Object != 0:
		place, id = extInObject, uint64(e.Object)
	case e.Inline != 0:
		place, id = extInline, uint64(e.Inline)
	}
	b := putUvarint(newValue(extVersion, 24), uint64(e.Length)<<2|place)
	return putUvarint(putFixed64(b, id), uint64(e.StripeOffset))
}

// DecodeExt decodes an extent of a table whose offset 0 is at base in the file.
func DecodeExt(key, value []byte, base int64) (moraine.Extent, error) {
	d := Dec{B: value}
	d.Version(extVersion)
	var e moraine.Extent
	length := d.Uvarint()
	e.Length = int64(length >> 2)
	e.Offset = base + int64(LastU64(key)) - e.Length
	id := d.Fixed64()
	switch place := length & 3; {
	case place == extInStripe:
		e.Stripe = moraine.StripeID(id)
	case id == 0 || place > extInline:
		d.fail(errNoPlace)
	case place == extInObject:
		e.Object = moraine.ObjectID(id)
	default:
		e.Inline = moraine.InlineID(id)
	}
	e.StripeOffset = int64(d.Uvarint())
	return e, d.End("extent")
}

var errNoPlace = errors.New("an extent without a place")
