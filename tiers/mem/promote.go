package mem

import (
	"context"
	"sync"

	"github.com/hashicorp/golang-lru/simplelru"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
)

const (
	// smallRead is the length up to which a read of a part of a chunk counts as small.
	smallRead = 64 << 10
	// promoteAfter is at how many scattered small reads of a chunk the whole chunk is read into memory.
	promoteAfter = 3
	// promoteCredit is how many bytes each byte of a scattered read allows to be read for promotions that
	// evict other chunks, and maxCredit how many such bytes are saved up. Where the chunks that are
	// read do not fit into memory, this bounds what the device reads in vain.
	promoteCredit, maxCredit = 8, 16 << 20
	// promotions is how many chunks are read whole at the same time.
	promotions = 2
)

// scattered counts small reads, at random places, of chunks that are not in memory. A chunk that has
// several of them is hot: one read of the whole chunk costs less than each of the reads to come. A read that
// begins where the last one ended belongs to a pass over the chunk, and does not count.
type scattered struct {
	arena *Arena

	mu      sync.Mutex // guards the fields below
	recent  *simplelru.LRU
	credit  int64
	running int
}

// part is what scattered knows of a chunk.
type part struct {
	length int64 // of the chunk
	end    int64 // of the last read
	reads  int
}

func newScattered(arena *Arena, bytes int64) *scattered {
	recent, _ := simplelru.NewLRU(int(min(max(bytes>>18, 1024), 32<<10)), nil) // fails only for a size of 0
	return &scattered{arena: arena, recent: recent}
}

// note counts a read of n bytes of a chunk of some length.
func (s *scattered) note(key chunkKey, off, n, length int64) {
	if n > smallRead {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &part{}
	if known, ok := s.recent.Get(key); ok {
		p = known.(*part)
	} else {
		s.recent.Add(key, p)
	}
	if off != p.end || p.reads == 0 {
		p.reads++
		s.credit = min(s.credit+promoteCredit*n, maxCredit)
	}
	p.length, p.end = length, off+n
}

// begin reports how long a chunk is that the caller must read whole; 0: it must not. end must follow.
func (s *scattered) begin(key chunkKey, off, n int64) (length int64) {
	if n > smallRead {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.recent.Peek(key)
	if !ok {
		return 0
	}
	p := known.(*part)
	if p.reads+1 < promoteAfter || off == p.end || off+n > p.length || s.running == promotions || !s.affords(p.length) {
		return 0
	}
	s.recent.Remove(key)
	s.running++
	return p.length
}

// affords reports whether a chunk may be read into memory: there is room beside what puts need, or reads have
// earned it. The caller holds mu.
func (s *scattered) affords(length int64) bool {
	now := s.arena.Stats()
	switch {
	case now.Waiting > 0:
		return false
	case now.Bytes-now.InUseBytes-length >= now.Bytes/8:
		return true
	case s.credit < length:
		return false
	}
	s.credit -= length
	return true
}

func (s *scattered) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
}

// promote reads a whole chunk into memory, and lends a range of it. It returns nil if the chunk is not to be
// read whole, or cannot: then the range is read alone.
func promote(ctx context.Context, t *Tier, id moraine.ChunkID, off, n int64) *tiers.View {
	key := t.key(id)
	length := t.m.scattered.begin(key, off, n)
	if length == 0 {
		return nil
	}
	defer t.m.scattered.end()
	whole, err := load(ctx, t, id, 0, length)
	if err != nil {
		return nil
	}
	whole.Release()
	return t.LendCached(id, off, n)
}
