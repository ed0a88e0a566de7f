package record

import (
	"errors"

	"github.com/morainefs/moraine"
)

// A file's content is a list of references to extent tables, each keyed by
// where its range of the file ends; a table is at most MaxTableExtents
// extents, each keyed by where it ends in the table. Ranges of references do
// not overlap, nor do extents; what none covers is a hole. Tables with more
// than one reference are sealed: they never change again, and an overwrite
// makes a new one.

// Ref is one reference of a content: the table's offset 0 is at base of the
// file.
type Ref struct {
	Table moraine.TableID
	Base  int64
	End   int64 // in the key
}

const RefVersion = 1

func (r Ref) Encode() []byte {
	return PutUvarint(PutFixed64(newValue(RefVersion, 16), uint64(r.Table)), uint64(r.Base))
}

func DecodeRef(key, value []byte) (Ref, error) {
	d := Dec{B: value}
	d.Version(RefVersion)
	r := Ref{Table: moraine.TableID(d.Fixed64()), Base: int64(d.Uvarint()), End: int64(LastU64(key))}
	return r, d.End("table reference")
}

// TableHead is the header of an extent table. refs 0 marks a table that is
// being taken apart.
type TableHead struct {
	Refs   uint32
	Count  uint32
	Bytes  int64 // sum of the extents' lengths
	Sealed bool
	// evicted is how many of the bytes are in objects.
	Evicted int64
}

const tableVersion = 1

func (h TableHead) Encode() []byte {
	b := PutUvarint(newValue(tableVersion, 16), uint64(h.Refs))
	b = PutUvarint(b, uint64(h.Count))
	b = putBool(PutUvarint(b, uint64(h.Bytes)), h.Sealed)
	return PutUvarint(b, uint64(h.Evicted))
}

func DecodeTableHead(b []byte) (TableHead, error) {
	d := Dec{B: b}
	d.Version(tableVersion)
	h := TableHead{Refs: d.U32(), Count: d.U32(), Bytes: int64(d.Uvarint())}
	h.Sealed = d.bool()
	h.Evicted = int64(d.Uvarint())
	return h, d.End("extent table")
}

// Extents in a table are relative to it. Their value has the length; the key
// has the end. The lowest bit of the length's number says that the bytes are in an object.

const extVersion = 1

func EncodeExt(e moraine.Extent) []byte {
	length, id := uint64(e.Length)<<1, uint64(e.Stripe)
	if e.Object != 0 {
		length, id = length|1, uint64(e.Object)
	}
	b := PutUvarint(newValue(extVersion, 24), length)
	return PutUvarint(PutFixed64(b, id), uint64(e.StripeOffset))
}

// DecodeExt returns an extent of a table whose offset 0 is at base of the file.
func DecodeExt(key, value []byte, base int64) (moraine.Extent, error) {
	d := Dec{B: value}
	d.Version(extVersion)
	var e moraine.Extent
	length := d.Uvarint()
	e.Length = int64(length >> 1)
	e.Offset = base + int64(LastU64(key)) - e.Length
	if id := d.Fixed64(); length&1 == 0 {
		e.Stripe = moraine.StripeID(id)
	} else if e.Object = moraine.ObjectID(id); id == 0 {
		d.fail(errNoObject)
	}
	e.StripeOffset = int64(d.Uvarint())
	return e, d.End("extent")
}

var errNoObject = errors.New("an extent of no object")
