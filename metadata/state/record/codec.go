package record

import (
	"encoding/binary"
	"fmt"
)

// A record names its fields once, in a method fields that runs in both directions. So encoder and
// decoder cannot disagree about a field, its place or its form. fields returns its codec, and
// Encode and Decode are one line each:
//
//	func (q Quota) Encode() []byte           { return q.fields(encoder(16)).B }
//	func (q *Quota) Decode(b []byte) error   { return q.fields(decoder(b)).End("quota") }
//
// The records that most commands read and write name their fields in Encode and in Decode: Inode,
// Dentry, Ref, TableHead, the extent, the stripe, Grant and Session. A codec keeps the slice in
// memory where these two functions keep it in registers, so that Encode took 21 to 73 % longer
// with it; each has its figure in a comment.
//
// fields must not change the record while it writes, because a record may be encoded by several
// goroutines. It therefore assigns fields only through a codec or if c.reading is set.

// codec appends the fields of a record to B, or consumes them from the front of B. After an error a
// reading codec returns zeros. A codec stays on the stack of its caller: the functions below take
// no interface and no closure.
type codec struct {
	Dec
	reading bool
}

// encoder returns a codec that writes a value, with space for size bytes.
func encoder(size int) *codec { return &codec{Dec: Dec{B: make([]byte, 0, size)}} }

// decoder returns a codec that reads a value.
func decoder(b []byte) *codec { return &codec{Dec: Dec{B: b}, reading: true} }

// fail records why a value is refused. A writing codec ignores it: only values that come from a
// store are checked.
func (c *codec) fail(err error) {
	if c.reading {
		c.Dec.fail(err)
	}
}

// version is the first byte of a value. Every version from 1 to newest is read, and newest is
// written.
func (c *codec) version(newest byte) {
	if c.reading {
		c.Version(newest)
	} else {
		c.B = append(c.B, newest)
	}
}

// uvarint is a number in as few bytes as possible. A reader refuses a number that has more bits than
// its type. An int64 is stored as the uint64 of its bits.
func uvarint[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](c *codec, p *T) {
	if !c.reading {
		c.B = binary.AppendUvarint(c.B, uint64(*p))
		return
	}
	v := c.Uvarint()
	if *p = T(v); uint64(*p) != v {
		*p = 0
		c.fail(fmt.Errorf("number %d is too large", v))
	}
}

// uvarints is a number for each element, without their count.
func (c *codec) uvarints(p []uint64) {
	if c.reading {
		for i := range p {
			p[i] = c.Uvarint()
		}
		return
	}
	b := c.B // in registers during the loop
	for _, v := range p {
		if v < 0x80 { // most numbers
			b = append(b, byte(v))
		} else {
			b = binary.AppendUvarint(b, v)
		}
	}
	c.B = b
}

// varint is a signed number in zigzag form.
func (c *codec) varint(p *int64) {
	if c.reading {
		*p = c.Dec.varint()
	} else {
		c.B = putVarint(c.B, *p)
	}
}

// fixed64 is 8 bytes, little endian.
func fixed64[T ~uint64 | ~int64](c *codec, p *T) {
	if c.reading {
		*p = T(c.Fixed64())
	} else {
		c.B = putFixed64(c.B, uint64(*p))
	}
}

// fixed32 is 4 bytes, little endian.
func (c *codec) fixed32(p *uint32) {
	if c.reading {
		*p = c.Dec.fixed32()
	} else {
		c.B = putFixed32(c.B, *p)
	}
}

// oneByte is a number or an enumeration of at most 8 bits.
func oneByte[T ~uint8 | ~int32](c *codec, p *T) {
	if c.reading {
		*p = T(c.Byte())
	} else {
		c.B = append(c.B, byte(*p))
	}
}

// bool is a byte 0 or 1.
func (c *codec) bool(p *bool) {
	if c.reading {
		*p = c.Dec.bool()
	} else {
		c.B = putBool(c.B, *p)
	}
}

// string is a length and that many bytes.
func (c *codec) string(p *string) {
	if c.reading {
		*p = c.Dec.string()
	} else {
		c.B = putString(c.B, *p)
	}
}

// bytes is a length and that many bytes. The reader makes a copy; nil for length 0.
func (c *codec) bytes(p *[]byte) {
	if c.reading {
		*p = c.Dec.bytes()
	} else {
		c.B = putBytes(c.B, *p)
	}
}

// array is the bytes of an array, without a length.
func (c *codec) array(p []byte) {
	switch {
	case !c.reading:
		c.B = append(c.B, p...)
	case len(c.B) < len(p):
		c.fail(errShort)
	default:
		c.B = c.B[copy(p, c.B):]
	}
}

// count is the number of elements that follow, each of at least size bytes. It refuses counts that
// the rest of the value cannot have.
func (c *codec) count(n *int, size int) {
	if c.reading {
		*n = c.Count(size)
	} else {
		c.B = binary.AppendUvarint(c.B, uint64(*n))
	}
}

// list is the length of a list whose elements have at least size bytes. It returns the list for a
// loop over the elements, with zeros if they are to be read.
func list[T any](c *codec, p *[]T, size int) []T {
	n := len(*p)
	c.count(&n, size)
	if c.reading {
		*p = nil
		if n > 0 {
			*p = make([]T, n)
		}
	}
	return *p
}

// more reports whether a field at the end of the value follows, which is only written if it is set.
func (c *codec) more(set bool) bool {
	if c.reading {
		return len(c.B) > 0
	}
	return set
}

// Rows of one number or text name their form here; their version and name are the caller's.

// EncodeNumber returns the stored value of a row of one number.
func EncodeNumber[T ~uint32 | ~uint64](version byte, n T) []byte {
	return numberFields(encoder(8), version, &n).B
}

// DecodeNumber decodes a row of one number; what names the row in errors.
func DecodeNumber[T ~uint32 | ~uint64](version byte, b []byte, what string) (n T, err error) {
	err = numberFields(decoder(b), version, &n).End(what)
	return n, err
}

func numberFields[T ~uint32 | ~uint64](c *codec, version byte, n *T) *codec {
	c.version(version)
	uvarint(c, n)
	return c
}

// EncodeID returns the stored value of a row of one number of fixed width.
func EncodeID[T ~uint64](version byte, id T) []byte { return idFields(encoder(9), version, &id).B }

// DecodeID decodes a row of one number of fixed width; what names the row in errors.
func DecodeID[T ~uint64](version byte, b []byte, what string) (id T, err error) {
	err = idFields(decoder(b), version, &id).End(what)
	return id, err
}

func idFields[T ~uint64](c *codec, version byte, id *T) *codec {
	c.version(version)
	fixed64(c, id)
	return c
}

// EncodeText returns the stored value of a row of one text.
func EncodeText(version byte, s string) []byte {
	return textFields(encoder(3+len(s)), version, &s).B
}

// decodeText decodes a row of one text; what names the row in errors.
func decodeText(version byte, b []byte, what string) (s string, err error) {
	err = textFields(decoder(b), version, &s).End(what)
	return s, err
}

func textFields(c *codec, version byte, s *string) *codec {
	c.version(version)
	c.string(s)
	return c
}
