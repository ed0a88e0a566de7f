package client

import "slices"

// place is where a reader of a file is. Formats with an index make readers look elsewhere now and
// then: torch.load reads the end of each tensor's archive before its bytes, parquet its footer. So a
// read elsewhere begins a place of its own, and ends none.
type place struct {
	from, next int64 // the last read that went on here
	streak     int   // consecutive reads that went on here
}

// maxPlaces bounds the places of a file that are remembered.
const maxPlaces = 4

// places are those of one file, the last used first.
type places []*place

// follow records a read of n bytes at off. It returns its place, and the one that was forgotten for
// it, or nil. A read is of a place if it begins in the last read there, or behind it, with no more
// bytes between them than it reads.
func (l *places) follow(off, n int64) (p, left *place) {
	i := slices.IndexFunc(*l, func(p *place) bool { return p.from <= off && off-p.next <= n })
	if i < 0 {
		if len(*l) == maxPlaces {
			left = (*l)[maxPlaces-1]
			*l = (*l)[:maxPlaces-1]
		}
		p = &place{from: off, next: off + n}
		*l = slices.Insert(*l, 0, p)
		return p, left
	}
	p = (*l)[i]
	*l = slices.Insert(slices.Delete(*l, i, i+1), 0, p)
	if off+n > p.next { // otherwise it reads the same again
		p.from, p.next = off, off+n
		p.streak++
	}
	return p, nil
}

// sequential is how many places have been read in order.
func (l places) sequential() (n int) {
	for _, p := range l {
		if p.streak > 0 {
			n++
		}
	}
	return n
}
