package ckpt

import (
	"encoding/binary"
)

// packedClaims are the slices of one tensor in little memory: a step of 10,000 ranks with 1,000
// tensors has 10 million. The zero value is ready.
type packedClaims struct {
	chunks [][]byte
	count  int
}

// The first chunk of a tensor has firstChunk bytes. Each has twice as many as the one before, up to
// lastChunk.
const (
	firstChunk = 64
	lastChunk  = 16 << 10
)

// add adds a slice of a rank.
func (p *packedClaims) add(rank uint32, s *SliceInfo) {
	var scratch [192]byte
	b := binary.AppendUvarint(scratch[:0], uint64(rank))
	b = binary.AppendUvarint(b, uint64(s.File))
	b = appendInts(b, s.Offset)
	b = appendInts(b, s.Shape)
	b = binary.AppendUvarint(b, uint64(s.Begin))
	b = append(b, s.Digest[:]...)
	last := len(p.chunks) - 1
	if last < 0 || cap(p.chunks[last])-len(p.chunks[last]) < len(b) {
		size := firstChunk
		if last >= 0 {
			size = min(2*cap(p.chunks[last]), lastChunk)
		}
		p.chunks = append(p.chunks, make([]byte, 0, max(size, len(b))))
		last++
	}
	p.chunks[last] = append(p.chunks[last], b...)
	p.count++
}

// unpack returns the slices in the order in which they were added.
func (p *packedClaims) unpack(dims int) []claim {
	out := make([]claim, p.count)
	ints := make([]int64, 2*dims*p.count)
	n := 0
	for _, b := range p.chunks {
		next := func() uint64 {
			v, size := binary.Uvarint(b)
			b = b[size:]
			return v
		}
		for ; len(b) > 0; n++ {
			k := &out[n]
			k.rank, k.File = uint32(next()), int(next())
			k.Offset, k.Shape, ints = ints[:dims:dims], ints[dims:2*dims:2*dims], ints[2*dims:]
			for d := range dims {
				k.Offset[d] = int64(next())
			}
			for d := range dims {
				k.Shape[d] = int64(next())
			}
			k.Begin = int64(next())
			b = b[copy(k.Digest[:], b):]
		}
	}
	return out
}
