package record

import "github.com/morainefs/moraine"

// Inline has bytes of a small file, for the extents that name it. The bytes never change.
type Inline struct {
	Refs   uint32          // extent tables that refer to it
	Origin moraine.InodeID // the file that it was made for
	CRC    uint32          // CRC32C of Bytes
	Bytes  []byte          // moraine.MaxInline at most
}

const inlineVersion = 1

// Encode returns the stored value.
func (r *Inline) Encode() []byte { return r.fields(encoder(24 + len(r.Bytes))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt. Bytes is part of b. It
// does not verify CRC: only a read needs the bytes.
func (r *Inline) Decode(b []byte) error { return r.fields(decoder(b)).End("inline content") }

func (r *Inline) fields(c *codec) *codec {
	c.version(inlineVersion)
	uvarint(c, &r.Refs)
	fixed64(c, &r.Origin)
	c.fixed32(&r.CRC)
	c.bytes(&r.Bytes)
	return c
}
