package record

import "github.com/morainefs/moraine/transport/wire"

// An object that is not in its bucket as it was recorded is bad: somebody deleted or replaced
// it there, or its bytes have changed. The hosts that serve the bucket report it, and report
// it good again. Bad objects are a table; a row goes with its object.

const (
	// MaxReportedObjects is the most objects that one ReportObjects is about.
	MaxReportedObjects = 64
	// MaxBadText bounds the text of a store that a row keeps, in bytes.
	MaxBadText = 200
	// MaxSharedLook is how many tables of a file are looked at for clones that share them.
	MaxSharedLook = 64

	badObjectVersion = 1
)

// BadObject is the row of an object that is not as it was recorded.
type BadObject struct {
	State  wire.ObjectState
	Offset uint64 // CORRUPT: of a piece with other bytes
	Since  uint64 // cluster time
	Text   string // of the store
}

func (b *BadObject) Encode() []byte {
	out := append(newValue(badObjectVersion, 32), byte(b.State))
	return PutString(PutUvarint(PutUvarint(out, b.Offset), b.Since), b.Text)
}

func DecodeBadObject(value []byte) (*BadObject, error) {
	d := Dec{B: value}
	d.Version(badObjectVersion)
	b := &BadObject{State: wire.ObjectState(d.Byte()), Offset: d.Uvarint(), Since: d.Uvarint(), Text: d.string()}
	return b, d.End("bad object")
}
