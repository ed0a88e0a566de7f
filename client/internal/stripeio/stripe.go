package stripeio

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/erasure"
)

// Stripe has the bytes of a stripe that is being filled or sent. It is a list
// of pieces of memory, some the stripe's own, some the caller's. The beginnings
// of its chunks depend on its length, so chunks are ranges of that list. It has
// one owner at a time.
type Stripe struct {
	segs    []segment
	Length  int64
	Charged int64 // bytes taken from the client's budget
	// Results of encode, for one scheme:
	scheme   moraine.Scheme
	chunkLen int64
	parity   []*bufpool.Buffer
	sums     []uint32 // CRC32C of each chunk
	content  uint32   // CRC32C of the stripe's own bytes, without padding
	summed   bool     // content is set: it stays the checksum from the first encoding
}

// segment is part of a stripe's bytes.
type segment struct {
	b   []byte          // the bytes
	buf *bufpool.Buffer // memory of b; nil: the caller's
}

// FirstSegment is the size of a stripe's first own buffer. Each further one is as large as all
// before it together. So small files take little memory, and buffers begin at multiples of
// erasure.PieceSize.
const FirstSegment = erasure.PieceSize

// NextSegment returns the size of the next own buffer.
func (s *Stripe) NextSegment(largest int64) int64 {
	var own int64
	for _, g := range s.segs {
		if g.buf != nil {
			own += int64(len(g.buf.Bytes()))
		}
	}
	return min(max(own, FirstSegment), largest)
}

// Fill copies from p into the rest of the last own buffer, up to a length of limit, and returns
// how many bytes it took.
func (s *Stripe) Fill(p []byte, limit int64) int {
	if len(s.segs) == 0 {
		return 0
	}
	g := &s.segs[len(s.segs)-1]
	if g.buf == nil {
		return 0
	}
	mem := g.buf.Bytes()
	n := copy(mem[len(g.b):], p[:min(int64(len(p)), limit-s.Length)])
	g.b = mem[:len(g.b)+n]
	s.Length += int64(n)
	return n
}

// AddBuffer appends an empty own buffer, which the stripe then owns.
func (s *Stripe) AddBuffer(buf *bufpool.Buffer) {
	s.segs = append(s.segs, segment{b: buf.Bytes()[:0], buf: buf})
}

// Lend appends bytes of the caller, who must not change them until the stripe is sent.
func (s *Stripe) Lend(p []byte) {
	s.segs = append(s.segs, segment{b: p})
	s.Length += int64(len(p))
}

// Free releases all memory of the stripe, but not its part of the budget.
func (s *Stripe) Free() {
	for _, g := range s.segs {
		if g.buf != nil {
			g.buf.Release()
		}
	}
	s.segs = nil
	s.FreeParity()
}

// FreeParity releases the results of encoding.
func (s *Stripe) FreeParity() {
	for _, p := range s.parity {
		p.Release()
	}
	s.parity, s.sums = nil, nil
}

// TakeWhole makes the stripe, which must be empty, from p at once. It copies, checksums and
// encodes each column while the column is in the CPU cache. For copies it only copies p.
func (s *Stripe) TakeWhole(ctx context.Context, e *Engine, scheme moraine.Scheme, p []byte) error {
	n := int64(len(p))
	c := scheme.ChunkLen(n)
	src := &Stripe{}
	src.Lend(p)
	into := make([][]byte, scheme.K)
	for i := range into {
		buf, err := e.Pool.Get(ctx, int(c))
		if err != nil {
			return err
		}
		s.AddBuffer(buf)
		into[i] = buf.Bytes()
	}
	if scheme.IsCopies() {
		s.Fill(p, n)
		return nil
	}
	err := src.encode(ctx, e, scheme, into)
	s.scheme, s.chunkLen, s.parity, s.sums, s.content, s.summed = scheme, src.chunkLen, src.parity, src.sums, src.content, src.summed
	if err != nil {
		return err
	}
	for i := range s.segs {
		s.segs[i].b = into[i]
	}
	s.Length = n
	return nil
}

// encode computes parity and checksums for scheme, unless that is done. If into is not nil, it
// has a slice of the chunk's length for each data chunk. encode copies the bytes there while
// they are in the CPU cache. Corrupt: the bytes are not those of the first checksums. New
// checksums would make a flipped bit in memory the content of the file.
func (s *Stripe) encode(ctx context.Context, c *Engine, scheme moraine.Scheme, into [][]byte) error {
	if s.scheme == scheme && s.sums != nil {
		return nil
	}
	s.FreeParity()
	first, again := s.content, s.summed
	if err := s.encodeFor(ctx, c, scheme, into); err != nil {
		return err
	}
	s.summed = true
	if again && s.content != first {
		now := s.content
		s.content = first
		s.FreeParity()
		return changedInMemory(first, now)
	}
	return nil
}

func (s *Stripe) encodeFor(ctx context.Context, c *Engine, scheme moraine.Scheme, into [][]byte) error {
	coder, err := c.coders.Get(scheme)
	if err != nil {
		return err
	}
	s.scheme, s.chunkLen = scheme, scheme.ChunkLen(s.Length)
	if scheme.IsCopies() {
		s.sumCopies(c.zeros)
		return nil
	}
	for range scheme.M {
		p, err := c.Pool.Get(ctx, int(s.chunkLen))
		if err != nil {
			s.FreeParity()
			return err
		}
		s.parity = append(s.parity, p)
	}
	return s.encodeColumns(coder, c.zeros, into)
}

// sumCopies computes the checksum of the chunk that all copies share.
func (s *Stripe) sumCopies(zeros []byte) {
	var sum uint32
	var at int64
	for _, p := range s.data(0, zeros) {
		sum = crc.Update(sum, p)
		if at += int64(len(p)); at == s.Length { // the rest is padding
			s.content = sum
		}
	}
	s.sums = make([]uint32, s.scheme.Chunks())
	for i := range s.sums {
		s.sums[i] = sum
	}
}

// encodeColumns goes through all chunks in parallel, PieceSize bytes of each at a time. It
// copies, checksums and encodes them while they are in the CPU cache.
func (s *Stripe) encodeColumns(coder *erasure.Coder, zeros []byte, into [][]byte) error {
	k, m := int(s.scheme.K), int(s.scheme.M)
	sums, own := make([]uint32, k+m), make([]uint32, k) // own: without padding
	at := make([]cursor, k)
	for i := range at {
		at[i] = s.cursor(int64(i)*s.chunkLen, min(int64(i+1)*s.chunkLen, s.Length))
	}
	pieces := make([][]byte, k+m)
	for off := int64(0); off < s.chunkLen; {
		width := min(erasure.PieceSize-int(off%erasure.PieceSize), int(s.chunkLen-off))
		for i := range at {
			if pieces[i] = at[i].peek(width); pieces[i] == nil {
				pieces[i] = zeros[:width]
			}
			width = min(width, len(pieces[i]))
		}
		for i := range at {
			pieces[i] = pieces[i][:width]
			if into != nil {
				dst := into[i][off:][:width]
				copy(dst, pieces[i])
				pieces[i] = dst
			}
			sums[i] = crc.Update(sums[i], pieces[i])
			if at[i].left > 0 {
				at[i].skip(width)
				own[i] = sums[i]
			}
		}
		for j := range m {
			pieces[k+j] = s.parity[j].Bytes()[off:][:width]
		}
		if m > 0 {
			if err := coder.Encode(pieces[:k], pieces[k:]); err != nil {
				return err
			}
		}
		for j := range m {
			sums[k+j] = crc.Update(sums[k+j], pieces[k+j])
		}
		off += int64(width)
	}
	s.sums, s.content = sums, own[0]
	for i := 1; i < k; i++ {
		length := min(s.chunkLen, s.Length-int64(i)*s.chunkLen)
		if length <= 0 {
			break
		}
		s.content = crc.Combine(s.content, own[i], length)
	}
	return nil
}

// payload returns the bytes of a chunk, in order, without a copy.
func (s *Stripe) payload(index int, zeros []byte) [][]byte {
	switch {
	case s.scheme.IsCopies():
		return s.data(0, zeros)
	case index < int(s.scheme.K):
		return s.data(index, zeros)
	default:
		return [][]byte{s.parity[index-int(s.scheme.K)].Bytes()[:s.chunkLen]}
	}
}

// data returns the bytes of data chunk i, with its padding.
func (s *Stripe) data(i int, zeros []byte) [][]byte {
	at := s.cursor(int64(i)*s.chunkLen, min(int64(i+1)*s.chunkLen, s.Length))
	left := s.chunkLen
	var out [][]byte
	for p := at.peek(int(left)); p != nil; p = at.peek(int(left)) {
		out = append(out, p)
		at.skip(len(p))
		left -= int64(len(p))
	}
	for left > 0 {
		p := zeros[:min(left, int64(len(zeros)))]
		out = append(out, p)
		left -= int64(len(p))
	}
	return out
}

// cut returns the part [from, to) of the stripe's bytes as a stripe that
// borrows them. The caller must stop using it before it frees the first.
func (s *Stripe) cut(from, to int64) *Stripe {
	part := &Stripe{}
	at := s.cursor(from, to)
	for p := at.peek(int(to - from)); p != nil; p = at.peek(int(to - from)) {
		part.Lend(p)
		at.skip(len(p))
	}
	return part
}

// cursor walks a range of a stripe's bytes.
type cursor struct {
	segs []segment
	off  int   // in segs[0]
	left int64 // to the end of the range
}

// cursor returns a cursor at from that ends at to; an empty one if to is not above from.
func (s *Stripe) cursor(from, to int64) cursor {
	c := cursor{segs: s.segs, left: to - from}
	if c.left <= 0 {
		return cursor{}
	}
	for from >= int64(len(c.segs[0].b)) {
		from -= int64(len(c.segs[0].b))
		c.segs = c.segs[1:]
	}
	c.off = int(from)
	return c
}

// peek returns the next contiguous bytes, at most n; nil at the end.
func (c *cursor) peek(n int) []byte {
	for c.left > 0 && c.off == len(c.segs[0].b) {
		c.segs, c.off = c.segs[1:], 0
	}
	if c.left <= 0 {
		return nil
	}
	b := c.segs[0].b[c.off:]
	return b[:min(int64(len(b)), int64(n), c.left)]
}

// skip advances by n bytes, at most what peek returned.
func (c *cursor) skip(n int) {
	if c.left > 0 {
		c.off += n
		c.left -= int64(n)
	}
}
