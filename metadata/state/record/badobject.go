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
func (b *BadObject) Encode() []byte { return b.fields(encoder(32 + len(b.Text))).B }

// DecodeBadObject decodes a row of the table of bad objects.
func DecodeBadObject(value []byte) (*BadObject, error) {
	b := &BadObject{}
	return b, b.fields(decoder(value)).End("bad object")
}

func (b *BadObject) fields(c *codec) *codec {
	c.version(badObjectVersion)
	oneByte(c, &b.State)
	uvarint(c, &b.Offset)
	uvarint(c, &b.Since)
	c.string(&b.Text)
	return c
}
