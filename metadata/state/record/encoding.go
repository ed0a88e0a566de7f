package record

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

// Dec reads a value from front to back. The first fault sticks in err, and
// every read after it yields zero.
type Dec struct {
	B   []byte
	Err error
}

func (d *Dec) fail(err error) {
	if d.Err == nil {
		d.Err = err
	}
	d.B = nil
}

// Version reads the version byte and holds it against the newest known.
func (d *Dec) Version(newest byte) byte {
	v := d.Byte()
	if d.Err == nil && (v == 0 || v > newest) {
		d.fail(fmt.Errorf("value has version %d, this build knows up to %d", v, newest))
	}
	return v
}

func (d *Dec) Byte() byte {
	if len(d.B) < 1 {
		d.fail(errShort)
		return 0
	}
	v := d.B[0]
	d.B = d.B[1:]
	return v
}

// bool reads a byte that must be 0 or 1, so that a record has one form.
func (d *Dec) bool() bool {
	v := d.Byte()
	if v > 1 {
		d.fail(fmt.Errorf("byte %d is no truth value", v))
	}
	return v == 1
}

func (d *Dec) Uvarint() uint64 {
	v, n := binary.Uvarint(d.B)
	if n <= 0 || (n > 1 && d.B[n-1] == 0) {
		d.fail(errors.New("number is cut off, too long or padded"))
		return 0
	}
	d.B = d.B[n:]
	return v
}

// U32 reads an uvarint of at most 32 bits.
func (d *Dec) U32() uint32 {
	v := d.Uvarint()
	if v>>32 != 0 {
		d.fail(fmt.Errorf("number %d needs more than 32 bits", v))
		return 0
	}
	return uint32(v)
}

// u8 reads an uvarint of at most 8 bits.
func (d *Dec) u8() uint8 {
	v := d.Uvarint()
	if v>>8 != 0 {
		d.fail(fmt.Errorf("number %d needs more than 8 bits", v))
		return 0
	}
	return uint8(v)
}

// varint reads a signed number in zigzag form.
func (d *Dec) varint() int64 {
	v := d.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (d *Dec) Fixed64() uint64 {
	if len(d.B) < 8 {
		d.fail(errShort)
		return 0
	}
	v := binary.LittleEndian.Uint64(d.B)
	d.B = d.B[8:]
	return v
}

func (d *Dec) fixed32() uint32 {
	if len(d.B) < 4 {
		d.fail(errShort)
		return 0
	}
	v := binary.LittleEndian.Uint32(d.B)
	d.B = d.B[4:]
	return v
}

// bytes reads a length and that many bytes, and returns a copy; nil for none.
func (d *Dec) bytes() []byte {
	n := d.Uvarint()
	if n > uint64(len(d.B)) {
		d.fail(errShort)
		return nil
	}
	if n == 0 {
		return nil
	}
	v := append([]byte(nil), d.B[:n]...)
	d.B = d.B[n:]
	return v
}

// bytes16 reads 16 bytes that have no length in front.
func (d *Dec) bytes16() (v [16]byte) {
	if len(d.B) < len(v) {
		d.fail(errShort)
		return v
	}
	d.B = d.B[copy(v[:], d.B):]
	return v
}

func (d *Dec) string() string {
	n := d.Uvarint()
	if n > uint64(len(d.B)) {
		d.fail(errShort)
		return ""
	}
	v := string(d.B[:n])
	d.B = d.B[n:]
	return v
}

// Count reads the number of elements to follow, each of at least size bytes,
// so that a damaged count allocates no more than the value is long.
func (d *Dec) Count(size int) int {
	n := d.Uvarint()
	if n > uint64(len(d.B)/max(size, 1)) {
		d.fail(errShort)
		return 0
	}
	return int(n)
}

// End returns the fault met, or one if bytes are left over.
func (d *Dec) End(what string) error {
	if d.Err == nil && len(d.B) != 0 {
		d.Err = fmt.Errorf("%d bytes are left over", len(d.B))
	}
	if d.Err == nil {
		return nil
	}
	return &moraine.Error{Op: "decode " + what, Kind: moraine.Corrupt, Err: d.Err}
}

// newValue begins a value of about size bytes, so that its fields need no more
// memory than it gets here.
func newValue(version byte, size int) []byte {
	return append(make([]byte, 0, size), version)
}

// Writers append to b, as the readers of dec read.

func PutUvarint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

func putVarint(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}

func PutFixed64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

func PutFixed32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }

func PutString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func PutBytes(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
