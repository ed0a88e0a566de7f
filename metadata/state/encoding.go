package state

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// Values are written by hand, so that equal records are equal bytes on every
// replica and in every release: protobuf promises no canonical form. A value
// is a version byte and then its fields, in order; a newer version appends
// fields, and a decoder takes every version up to its own. What is left over
// at the end of a value, or missing, is Corrupt.

var errShort = errors.New("value is too short")

// dec reads a value from front to back. The first fault sticks in err, and
// every read after it yields zero.
type dec struct {
	b   []byte
	err error
}

func (d *dec) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

// version reads the version byte and holds it against the newest known.
func (d *dec) version(newest byte) byte {
	v := d.byte()
	if d.err == nil && (v == 0 || v > newest) {
		d.fail(fmt.Errorf("value has version %d, this build knows up to %d", v, newest))
	}
	return v
}

func (d *dec) byte() byte {
	if len(d.b) < 1 {
		d.fail(errShort)
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// bool reads a byte that must be 0 or 1, so that a record has one form.
func (d *dec) bool() bool {
	v := d.byte()
	if v > 1 {
		d.fail(fmt.Errorf("byte %d is no truth value", v))
	}
	return v == 1
}

func (d *dec) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || (n > 1 && d.b[n-1] == 0) {
		d.fail(errors.New("number is cut off, too long or padded"))
		return 0
	}
	d.b = d.b[n:]
	return v
}

// u32 reads an uvarint of at most 32 bits.
func (d *dec) u32() uint32 {
	v := d.uvarint()
	if v>>32 != 0 {
		d.fail(fmt.Errorf("number %d needs more than 32 bits", v))
		return 0
	}
	return uint32(v)
}

// u8 reads an uvarint of at most 8 bits.
func (d *dec) u8() uint8 {
	v := d.uvarint()
	if v>>8 != 0 {
		d.fail(fmt.Errorf("number %d needs more than 8 bits", v))
		return 0
	}
	return uint8(v)
}

// varint reads a signed number in zigzag form.
func (d *dec) varint() int64 {
	v := d.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (d *dec) fixed64() uint64 {
	if len(d.b) < 8 {
		d.fail(errShort)
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *dec) fixed32() uint32 {
	if len(d.b) < 4 {
		d.fail(errShort)
		return 0
	}
	v := binary.LittleEndian.Uint32(d.b)
	d.b = d.b[4:]
	return v
}

// bytes reads a length and that many bytes, and returns a copy; nil for none.
func (d *dec) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail(errShort)
		return nil
	}
	if n == 0 {
		return nil
	}
	v := append([]byte(nil), d.b[:n]...)
	d.b = d.b[n:]
	return v
}

// bytes16 reads 16 bytes that have no length in front.
func (d *dec) bytes16() (v [16]byte) {
	if len(d.b) < len(v) {
		d.fail(errShort)
		return v
	}
	d.b = d.b[copy(v[:], d.b):]
	return v
}

func (d *dec) string() string {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail(errShort)
		return ""
	}
	v := string(d.b[:n])
	d.b = d.b[n:]
	return v
}

// count reads the number of elements to follow, each of at least size bytes,
// so that a damaged count allocates no more than the value is long.
func (d *dec) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/max(size, 1)) {
		d.fail(errShort)
		return 0
	}
	return int(n)
}

// end returns the fault met, or one if bytes are left over.
func (d *dec) end(what string) error {
	if d.err == nil && len(d.b) != 0 {
		d.err = fmt.Errorf("%d bytes are left over", len(d.b))
	}
	if d.err == nil {
		return nil
	}
	return &moraine.Error{Op: "decode " + what, Kind: moraine.Corrupt, Err: d.err}
}

// newValue begins a value of about size bytes, so that its fields need no more
// memory than it gets here.
func newValue(version byte, size int) []byte {
	return append(make([]byte, 0, size), version)
}

// Writers append to b, as the readers of dec read.

func putUvarint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }
func putVarint(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}
func putFixed64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }
func putFixed32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func putString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
func putBytes(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
