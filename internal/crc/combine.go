package crc

import (
	"hash/crc32"
	"math/bits"

	"github.com/morainefs/moraine"
)

// A CRC is the remainder of a polynomial over GF(2), stored with reflected
// coefficients: bit 31 is x^0, bit 0 is x^31. Appending n bytes multiplies the
// remainder by x^(8n) modulo the Castagnoli polynomial. Since the pre- and
// post-inversions cancel, crc(a||b) = crc(a)·x^(8·len(b)) xor crc(b).

// Combine returns the checksum of a||b, where a and b are the checksums of the two
// parts. lenB, which must not be negative, is the length of the second in bytes.
func Combine(a, b uint32, lenB int64) uint32 {
	if lenB < 0 {
		panic("crc: negative length")
	}
	if lenB == moraine.BlockSize {
		return shiftBlock.apply(a) ^ b
	}
	return multiply(powerOfX(uint64(lenB)), a) ^ b
}

// multiply returns a·b modulo the polynomial.
func multiply(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 { // from x^0 up
		if a&(1<<31) != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.Castagnoli&-(b&1) // b·x
	}
	return product
}

// squares[i] is x^(8·2^i) modulo the polynomial.
var squares = makeSquares()

func makeSquares() (s [63]uint32) {
	s[0] = 1 << (31 - 8) // x^8
	for i := 1; i < len(s); i++ {
		s[i] = multiply(s[i-1], s[i-1])
	}
	return s
}

// powerOfX returns x^(8n) modulo the polynomial.
func powerOfX(n uint64) uint32 {
	power := uint32(1 << 31) // x^0
	for ; n != 0; n &= n - 1 {
		power = multiply(squares[bits.TrailingZeros64(n)], power)
	}
	return power
}

// shift is the operator "followed by n bytes" for one n: four look-ups instead of a
// multiplication.
type shift [4][256]uint32

// shiftBlock is the shift by one block.
var shiftBlock = makeShift(moraine.BlockSize)

func makeShift(n uint64) *shift {
	power := powerOfX(n)
	s := new(shift)
	for lane := range s {
		for v := range s[lane] {
			s[lane][v] = multiply(power, uint32(v)<<(8*lane))
		}
	}
	return s
}

func (s *shift) apply(c uint32) uint32 {
	return s[0][c&255] ^ s[1][c>>8&255] ^ s[2][c>>16&255] ^ s[3][c>>24]
}
