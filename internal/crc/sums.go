package crc

import (
	"context"
	"sync"

	"github.com/morainefs/moraine"
)

// Sums has the checksums of the blocks of a buffer that requests fill, each a range of it. A request
// verifies its bytes as they arrive, and keeps the checksums of the blocks by a Tally: so the bytes need
// not be read again for a digest. Methods may be called concurrently. A nil *Sums keeps none.
type Sums struct {
	buf    []byte
	blocks []uint32 // a block has one request at a time, which owns its element

	mu    sync.Mutex // guards known
	known []bool
}

// NewSums returns the Sums of buf, which has no block yet.
func NewSums(buf []byte) *Sums {
	n := BlockCount(int64(len(buf)))
	return &Sums{buf: buf, blocks: make([]uint32, n), known: make([]bool, n)}
}

// Blocks returns the checksums of all blocks, as the function Blocks. Those that no request has kept are
// computed now. No request may be running.
func (s *Sums) Blocks() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, known := range s.known {
		if !known {
			s.blocks[i], s.known[i] = Sum(s.block(i)), true
		}
	}
	return s.blocks
}

// Missing returns how many blocks have no checksum yet.
func (s *Sums) Missing() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.known {
		if !known {
			n++
		}
	}
	return n
}

func (s *Sums) block(i int) []byte {
	from := i * moraine.BlockSize
	return s.buf[from:min(from+moraine.BlockSize, len(s.buf))]
}

// Forget drops the checksums of the blocks that dst touches, a range of the buffer that is about to be
// filled again. Memory outside the buffer is none of its.
func (s *Sums) Forget(dst []byte) {
	at, ok := s.offset(dst)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := at / moraine.BlockSize; i*moraine.BlockSize < at+len(dst); i++ {
		s.known[i] = false
	}
}

// offset returns where in the buffer dst begins, if it is a range of it.
func (s *Sums) offset(dst []byte) (int, bool) {
	if s == nil || len(dst) == 0 {
		return 0, false
	}
	at := cap(s.buf) - cap(dst) // slices of the same memory that end where it ends
	if at < 0 || at+len(dst) > len(s.buf) || &s.buf[at] != &dst[0] {
		return 0, false
	}
	return at, true
}

// Tally computes the checksum of bytes that arrive in order in dst. It keeps the checksums of the whole
// blocks for s, if dst is a range of the buffer of s.
func (s *Sums) Tally(dst []byte) Tally {
	at, ok := s.offset(dst)
	if !ok {
		return Tally{}
	}
	return Tally{of: s, from: at, at: at}
}

// Tally computes the checksum of bytes that arrive in pieces. The zero Tally does only that.
type Tally struct {
	of       *Sums
	from, at int    // the range of the buffer that has arrived
	sum      uint32 // of what arrived before the current block
	part     uint32 // of the current block
	have     int    // its bytes
}

// Add adds the next bytes.
func (t *Tally) Add(p []byte) {
	if t.of == nil {
		t.sum = Update(t.sum, p)
		return
	}
	if t.have == 0 { // what is before the first whole block
		n := min((moraine.BlockSize-t.at%moraine.BlockSize)%moraine.BlockSize, len(p))
		t.sum, t.at, p = Update(t.sum, p[:n]), t.at+n, p[n:]
	}
	for len(p) > 0 {
		n := min(moraine.BlockSize-t.have, len(p))
		t.part = Update(t.part, p[:n])
		t.have, t.at, p = t.have+n, t.at+n, p[n:]
		if t.have == moraine.BlockSize {
			t.of.blocks[t.at/moraine.BlockSize-1] = t.part
			t.sum = shiftBlock.apply(t.sum) ^ t.part
			t.part, t.have = 0, 0
		}
	}
}

// Sum returns the checksum of all bytes added.
func (t *Tally) Sum() uint32 {
	if t.have == 0 {
		return t.sum
	}
	return Combine(t.sum, t.part, int64(t.have))
}

// Keep keeps the checksums for the Sums. Call it once the bytes are known to be right, and nothing writes
// to them any more.
func (t *Tally) Keep() {
	s := t.of
	if s == nil {
		return
	}
	first, end := BlockCount(int64(t.from)), t.at/moraine.BlockSize
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.have > 0 && t.at == len(s.buf) { // the last block of the buffer is short
		s.blocks[end] = t.part
		end++
	}
	for i := first; i < end; i++ {
		s.known[i] = true
	}
}

type sumsKey struct{}

// WithSums lets reads under a context keep checksums of what they put into the buffer of s.
func WithSums(ctx context.Context, s *Sums) context.Context {
	return context.WithValue(ctx, sumsKey{}, s)
}

// SumsOf returns the Sums of a context, nil if it has none.
func SumsOf(ctx context.Context) *Sums {
	s, _ := ctx.Value(sumsKey{}).(*Sums)
	return s
}
