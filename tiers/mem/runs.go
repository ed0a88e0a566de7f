package mem

import "math/bits"

// runs allocates runs of neighbouring blocks of an arena. Free runs are in lists by
// size, four steps to each doubling (as in TLSF: M. Masmano and others, "TLSF: a
// new dynamic memory allocator for real-time systems", 2004). A freed run merges
// with free neighbours. The state lies beside the arena: 13 bytes for each block.
type runs struct {
	// The length in blocks of a run, at its first block and, for a free run, also
	// at its last block.
	length []uint32
	used   []bool // at the first and last block of a run
	// The list of a free run, by its first block.
	next, prev []uint32
	heads      [bins]uint32
	filled     [bins/64 + 1]uint64 // which lists are not empty
	free       int                 // free blocks
}

// none ends a list; an arena has fewer blocks.
const none = ^uint32(0)

// bins suffices for runs of any 32-bit number of blocks.
const bins = 4 * 32

func newRuns(blocks int) *runs {
	r := &runs{length: make([]uint32, blocks), used: make([]bool, blocks), next: make([]uint32, blocks), prev: make([]uint32, blocks)}
	for i := range r.heads {
		r.heads[i] = none
	}
	r.free = blocks
	r.link(0, uint32(blocks))
	return r
}

// binOf returns the list of runs of n blocks: bin b has those of at least
// 4..7 << shift blocks.
func binOf(n uint32) int {
	if n < 4 {
		return int(n)
	}
	shift := bits.Len32(n) - 3
	return 4*(shift+1) + int(n>>shift) - 4
}

// take returns the first block of a run of n, and whether there was one.
func (r *runs) take(n int) (first int, ok bool) {
	if n < 1 || n > r.free {
		return 0, false
	}
	want := uint32(n)
	bin := binOf(want)
	at := r.heads[bin]
	for at != none && r.length[at] < want { // a run in the bin of its own size may be too short
		at = r.next[at]
	}
	if at == none {
		if at = r.above(bin); at == none {
			return 0, false
		}
	}
	have := r.length[at]
	r.unlink(at)
	if have > want {
		r.link(at+want, have-want)
	}
	r.length[at] = want
	r.used[at], r.used[at+want-1] = true, true
	r.free -= n
	return int(at), true
}

// above returns a run from a list past bin, or none.
func (r *runs) above(bin int) uint32 {
	from := bin + 1
	for word := from / 64; word < len(r.filled); word++ {
		set := r.filled[word]
		if word == from/64 {
			set &= ^uint64(0) << (from % 64)
		}
		if set != 0 {
			return r.heads[64*word+bits.TrailingZeros64(set)]
		}
	}
	return none
}

// give frees a run that was taken, by its first block.
func (r *runs) give(first int) {
	at := uint32(first)
	n := r.length[at]
	r.free += int(n)
	r.used[at], r.used[at+n-1] = false, false
	if end := at + n; int(end) < len(r.length) && !r.used[end] {
		more := r.length[end]
		r.unlink(end)
		n += more
	}
	if at > 0 && !r.used[at-1] {
		before := r.length[at-1]
		at -= before
		r.unlink(at)
		n += before
	}
	r.link(at, n)
}

func (r *runs) link(at, n uint32) {
	r.length[at], r.length[at+n-1] = n, n
	bin := binOf(n)
	head := r.heads[bin]
	r.next[at], r.prev[at] = head, none
	if head != none {
		r.prev[head] = at
	}
	r.heads[bin] = at
	r.filled[bin/64] |= 1 << (bin % 64)
}

func (r *runs) unlink(at uint32) {
	bin := binOf(r.length[at])
	next, prev := r.next[at], r.prev[at]
	if next != none {
		r.prev[next] = prev
	}
	if prev != none {
		r.next[prev] = next
		return
	}
	r.heads[bin] = next
	if next == none {
		r.filled[bin/64] &^= 1 << (bin % 64)
	}
}
