package crc

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// foldTable has what fold multiplies by: pairs of x^(d+63) and x^(d-1) for a distance of d bits.
// A product of two reflected 64-bit halves lacks one factor x, so each power is one less than
// the distance of its half.
type foldTable struct {
	by2048, by1536, by1024, by512 [2]uint64
	lanes                         [4][2]uint64 // by 384, 256 and 128 bits; the last lane stays
}

var folds = foldTable{
	by2048: distance(2048), by1536: distance(1536), by1024: distance(1024), by512: distance(512),
	lanes: [4][2]uint64{distance(384), distance(256), distance(128)},
}

func distance(bits uint64) [2]uint64 {
	return [2]uint64{uint64(bitPower(bits+63)) << 32, uint64(bitPower(bits-1)) << 32}
}

// bitPower returns x^n modulo the polynomial.
func bitPower(n uint64) uint32 { return multiply(powerOfX(n/8), 1<<(31-n%8)) }

// canFold says whether the processor has the instructions of fold.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasSSE42

// minFold is the least number of bytes for which fold is worth its beginning and end; fold needs
// 256.
const minFold = 512

// fold returns the state of a checksum after n more bytes at p. The state is the inverted
// checksum. n is a multiple of 64, at least 256.
//
//go:noescape
func fold(state uint32, p *byte, n int, k *foldTable) uint32

func update(sum uint32, p []byte) uint32 {
	if canFold && len(p) >= minFold {
		n := len(p) &^ 63
		sum = ^fold(^sum, &p[0], n, &folds)
		p = p[n:]
	}
	return crc32.Update(sum, castagnoli, p)
}
