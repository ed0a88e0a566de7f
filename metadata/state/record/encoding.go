package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// Values are encoded by hand, so that equal records are equal bytes on every replica and in every
// release; protobuf has no canonical form. A value is a version byte and then its fields in order.
// A newer version appends fields, and a decoder accepts every version up to its own. Missing or
// extra bytes at the end of a value are Corrupt.

var errShort = errors.New("value is too short")

// Dec reads a value from front to back. It keeps the first error in Err, and every later read
// returns zero.
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

// Version reads the version byte and compares it with the newest known version.
func (d *Dec) Version(newest byte) byte {
	v := d.Byte()
	if d.Err == nil && (v == 0 || v > newest) {
		d.fail(fmt.Errorf("value has version %d, this build knows up to %d", v, newest))
	}
	return v
}

// Byte reads one byte.
func (d *Dec) Byte() byte {
	if len(d.B) < 1 {
		d.fail(errShort)
		return 0
	}
	v := d.B[0]
	d.B = d.B[1:]
	return v
}

// bool reads a byte that must be 0 or 1, so that each record has one encoding.
func (d *Dec) bool() bool {
	v := d.Byte()
	if v > 1 {
		d.fail(fmt.Errorf("byte %d is not a boolean", v))
	}
	return v == 1
}

// Uvarint reads an unsigned varint.
func (d *Dec) Uvarint() uint64 {
	if len(d.B) > 0 && d.B[0] < 0x80 { // most numbers
		v := d.B[0]
		d.B = d.B[1:]
		return uint64(v)
	}
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

// varint reads a signed number in zigzag form.
func (d *Dec) varint() int64 {
	v := d.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// Fixed64 reads 8 bytes, little endian.
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

// bytes reads a length and that many bytes, and returns a copy; nil for length 0.
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

// bytes16 reads 16 bytes without a length.
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

// Count reads the number of elements that follow, each of at least size bytes. It refuses counts
// that the rest of the value cannot have, so that damage cannot cause a large allocation.
func (d *Dec) Count(size int) int {
	n := d.Uvarint()
	if n > uint64(len(d.B)/max(size, 1)) {
		d.fail(errShort)
		return 0
	}
	return int(n)
}

// End returns the first error, or an error if bytes are left over. Its kind is Corrupt.
func (d *Dec) End(what string) error {
	if d.Err == nil && len(d.B) != 0 {
		d.Err = fmt.Errorf("%d bytes are left over", len(d.B))
	}
	if d.Err == nil {
		return nil
	}
	return &moraine.Error{Op: "decode " + what, Kind: moraine.Corrupt, Err: d.Err}
}

// newValue starts a value and allocates size bytes for its fields.
func newValue(version byte, size int) []byte {
	return append(make([]byte, 0, size), version)
}

// The writers append to b what the readers of Dec read.

// putUvarint appends an unsigned varint.
func putUvarint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

func putVarint(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}

// putFixed64 appends 8 bytes, little endian.
func putFixed64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

// putFixed32 appends 4 bytes, little endian.
func putFixed32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }

// putString appends the length and bytes of s.
func putString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// putBytes appends the length and bytes of s.
func putBytes(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
