package nodecache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
)

// Content names the bytes of one generation of a file. They never change. A generation has its
// meaning within one incarnation of the metadata of one cluster, so both are in the name.
type Content struct {
	Cluster     moraine.UUID
	Incarnation moraine.MarkedIncarnation
	Inode       moraine.InodeID
	Generation  moraine.Generation
	Size        int64
}

// Part is what one cache file holds: span bytes of a content, or what is left of it at its end.
type Part struct {
	Content
	Index int64
}

const (
	// span is how many bytes of a content one cache file covers.
	span = 4 << 20
	// blockSize is the unit in which a cache file has bytes, and a checksum of them.
	blockSize = moraine.BlockSize
)

// part returns the part that covers an offset.
func (c Content) part(off int64) Part { return Part{Content: c, Index: off / span} }

func (p Part) begin() int64  { return p.Index * span }
func (p Part) end() int64    { return min(p.begin()+span, p.Size) }
func (p Part) length() int64 { return p.end() - p.begin() }

// blocks is the number of blocks, of which the last may be shorter.
func (p Part) blocks() int { return int((p.length() + blockSize - 1) / blockSize) }

// blockLength returns how many bytes block i has.
func (p Part) blockLength(i int) int64 { return min(blockSize, p.length()-int64(i)*blockSize) }

// The layout of a cache file (docs/formats/node-cache.md).
const (
	magic = "MORANCF1"
	// headerBytes is the length of the header, of which the first sealedBytes are covered by the
	// checksum that follows them.
	headerBytes = 128
	sealedBytes = 80
	// queueAt and usedAt are bytes that change: the queue of the file, and whether it was read.
	queueAt = 96
	usedAt  = 97
	// sumBytes is the length of one block's sum. The sums follow the header.
	sumBytes = 8
	// smallFile is up to how many blocks the bytes follow the sums at once. In a larger file they
	// begin at a multiple of blockSize.
	smallFile = 16
)

// dataAt returns the offset of the first block in the file.
func (p Part) dataAt() int64 {
	end := int64(headerBytes + sumBytes*p.blocks())
	if p.blocks() <= smallFile {
		return end
	}
	return (end + blockSize - 1) / blockSize * blockSize
}

// header returns the beginning of the part's cache file, as it is made.
func (p Part) header() []byte {
	h := make([]byte, 0, headerBytes)
	h = append(h, magic...)
	h = append(h, p.Cluster[:]...)
	h = append(h, p.Incarnation.Mark[:]...)
	h = binary.LittleEndian.AppendUint64(h, uint64(p.Incarnation.Number))
	h = binary.LittleEndian.AppendUint64(h, uint64(p.Inode))
	h = binary.LittleEndian.AppendUint64(h, uint64(p.Generation))
	h = binary.LittleEndian.AppendUint64(h, uint64(p.Size))
	h = binary.LittleEndian.AppendUint64(h, uint64(p.Index))
	h = binary.LittleEndian.AppendUint32(h, crc.Sum(h))
	return h[:headerBytes]
}

// ID names a cache file: the beginning of the SHA-256 of its header. The name of the file is the
// ID in hex.
type ID [16]byte

func (p Part) id() ID {
	sum := sha256.Sum256(p.header()[:sealedBytes])
	return ID(sum[:16])
}

// isHeaderOf reports whether h is the header of the part's cache file. What may change is not
// compared.
func (p Part) isHeaderOf(h []byte) bool {
	return len(h) == headerBytes && bytes.Equal(h[:sealedBytes+4], p.header()[:sealedBytes+4])
}

// sum is what a cache file records of a block: its CRC32C and its length. 0: the file does not
// have the block.
type sum uint64

// sumOf returns the sum of the bytes of a block.
func sumOf(p []byte) sum { return sum(crc.Sum(p)) | sum(len(p))<<32 }
