package record

import "github.com/morainefs/moraine/transport/wire"

// An object is bad if the bucket's object differs from the record: somebody deleted or replaced it,
// or its bytes changed. The hosts that serve the bucket report it, and report when it is good
// again. A table lists the bad objects; a row goes with its object.

const (
	// MaxReportedObjects is the largest number of objects in one ReportObjects.
	MaxReportedObjects = 64
	// MaxBadText bounds the store's error text in a row, in bytes.
	MaxBadText = 200
	// MaxSharedLook is the number of a file's tables inspected for clones that share them.
	MaxSharedLook = 64

	badObjectVersion = 1
)

// BadObject is the row of a bad object.
type BadObject struct {
	State  wire.ObjectState
	Offset uint64 // of the damaged piece, if the state is CORRUPT
	Since  uint64 // cluster time
	Text   string // error text of the store
}

// Encode returns the stored value.
func (b *BadObject) Encode() []byte {
	out := append(newValue(badObjectVersion, 32), byte(b.State))
	return PutString(PutUvarint(PutUvarint(out, b.Offset), b.Since), b.Text)
}

// DecodeBadObject decodes a row of the table of bad objects.
func DecodeBadObject(value []byte) (*BadObject, error) {
	d := Dec{B: value}
	d.Version(badObjectVersion)
	b := &BadObject{State: wire.ObjectState(d.Byte()), Offset: d.Uvarint(), Since: d.Uvarint(), Text: d.string()}
	return b, d.End("bad object")
}
