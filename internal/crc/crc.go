// Package crc computes the CRC32C (Castagnoli) checksums that Moraine stores with
// all bytes. It combines checksums of pieces into the checksum of the whole, so
// that no byte is checksummed twice. It does no I/O and has no state. All functions
// may be called concurrently.
//
// One path through it: a receiver calls Blocks on each piece of a chunk while the
// piece is in the processor's cache. At the end CombineBlocks computes the chunk's
// checksum without reading the bytes again.
package crc

import (
	"fmt"
	"hash/crc32"

	"github.com/morainefs/moraine"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum returns the CRC32C of p. The checksum of no bytes is 0.
func Sum(p []byte) uint32 { return update(0, p) }

// Update returns the checksum of a||p, where crc is the checksum of a.
func Update(crc uint32, p []byte) uint32 { return update(crc, p) }

// Blocks appends to dst the checksum of each moraine.BlockSize bytes of p, of which
// the last block may be shorter, and returns it. No bytes have no blocks.
func Blocks(dst []uint32, p []byte) []uint32 {
	for len(p) > moraine.BlockSize {
		dst = append(dst, Sum(p[:moraine.BlockSize]))
		p = p[moraine.BlockSize:]
	}
	if len(p) > 0 {
		dst = append(dst, Sum(p))
	}
	return dst
}

// BlockCount returns how many checksums Blocks makes of total bytes.
func BlockCount(total int64) int {
	return int((total + moraine.BlockSize - 1) / moraine.BlockSize)
}

// CombineBlocks returns the checksum of total bytes with the given block checksums.
// It panics unless len(blocks) is BlockCount(total).
func CombineBlocks(blocks []uint32, total int64) uint32 {
	if len(blocks) != BlockCount(total) {
		panic(fmt.Sprintf("crc: %d block sums for %d bytes", len(blocks), total))
	}
	if len(blocks) == 0 {
		return 0
	}
	sum := blocks[0]
	if len(blocks) == 1 {
		return sum
	}
	last := len(blocks) - 1
	for _, b := range blocks[1:last] {
		sum = shiftBlock.apply(sum) ^ b
	}
	return Combine(sum, blocks[last], total-int64(last)*moraine.BlockSize)
}

// Range returns the checksum of rng, a verified range at off of total bytes with
// the given block checksums. Whole blocks contribute these checksums.
func Range(rng []byte, blocks []uint32, off, total int64) uint32 {
	sum := uint32(0)
	for len(rng) > 0 {
		i := off / moraine.BlockSize
		whole := min(moraine.BlockSize, total-i*moraine.BlockSize)
		n := min(whole-off%moraine.BlockSize, int64(len(rng)))
		if n == whole {
			sum = Combine(sum, blocks[i], n)
		} else {
			sum = Update(sum, rng[:n])
		}
		rng, off = rng[n:], off+n
	}
	return sum
}
