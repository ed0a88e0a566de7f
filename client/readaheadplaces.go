package client

import "slices"

// place is where a reader of a file is. Formats with an index make readers look elsewhere now and
// then: torch.load reads the end of each tensor's archive before its bytes, parquet its footer. So a
// read elsewhere begins a place of its own, and ends none.
type place struct {
	from, next int64 // the last read that went on here
	streak     int   // consecutive reads that went on here
	begin      int64 // where the first of them began
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
		p = &place{from: off, next: off + n, begin: off}
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

// runs has the lengths of the last reads in order that ended, in bytes: files of records are read a
// record here and a record there.
type runs struct {
	last [4]int64
	n    int
}

// ended records the end of what was read at a place. One read is no order.
func (r *runs) ended(p *place) {
	if p != nil && p.streak > 0 {
		r.last[r.n%len(r.last)] = p.next - p.begin
		r.n++
	}
}

// left returns how many bytes a reader is likely to read yet in order, at a place: as many as the
// longest of the last runs has left. known is false if it has read more than that, or none has ended.
func (r *runs) left(p *place) (n int64, known bool) {
	n = slices.Max(r.last[:]) - (p.next - p.begin)
	return n, n >= 0 && r.n > 0
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
