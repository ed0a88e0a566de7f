package ckpt

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendInts(b []byte, v []int64) []byte {
	for _, n := range v {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// decoder reads fields off b. After the first failure everything it returns is
// zero, and err says why.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = corrupt(format, args...)
	}
	d.b = nil
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.fail("cut short")
		return make([]byte, min(n, 64))
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte  { return d.bytes(1)[0] }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit || n != (bits.Len64(v|1)+6)/7 {
		d.fail("a number is cut short, too long, or past %d", limit)
		return 0
	}
	d.b = d.b[n:]
	return v
}

// int reads a signed number.
func (d *decoder) int() int64 {
	v := d.uint(math.MaxUint32 << 1)
	return int64(v>>1) ^ -int64(v&1)
}

// count reads how many elements follow, each of at least size bytes.
func (d *decoder) count(size int) int { return int(d.uint(uint64(len(d.b) / size))) }

func (d *decoder) str(limit int) string {
	n := int(d.uint(uint64(limit)))
	if n > len(d.b) {
		d.fail("a string is cut short")
		return ""
	}
	return string(bytes.Clone(d.bytes(n)))
}

func (d *decoder) ints(n int) []int64 {
	v := make([]int64, n)
	for i := range v {
		v[i] = int64(d.uint(math.MaxInt64))
	}
	return v
}
