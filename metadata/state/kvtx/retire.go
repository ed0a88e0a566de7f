package kvtx

// What a batch knew of each key is its largest piece of memory by far, and the
// next batch needs as much: a batch that was flushed hands its memory on.

// maxRetired bounds the cells of a batch whose memory is kept: entries with more
// are rare, and to empty a large map takes as long as to fill it.
const maxRetired = 4096

// newBatch returns a batch that knows nothing yet, in the memory of an earlier one
// where there is one.
func (s *Space) newBatch() *Batch {
	if b := s.spare.Swap(nil); b != nil {
		return b
	}
	return &Batch{Space: s, k: s.K, cells: make(map[string]*cell, 4*slabCells)}
}

// retire gives the memory of a batch that was flushed to later ones. Nothing that
// a Result holds is in it.
func (b *Batch) retire() {
	if len(b.cells) > maxRetired {
		return
	}
	clear(b.cells)
	clear(b.usage)
	clear(b.dirty[:cap(b.dirty)])
	clear(b.dirtyUsage[:cap(b.dirtyUsage)])
	b.slabs.reset()
	*b = Batch{Space: b.Space, k: b.k, cells: b.cells, slabs: b.slabs, dirty: b.dirty[:0],
		usage: b.usage, dirtyUsage: b.dirtyUsage[:0], t: b.t.retire()}
	b.Space.spare.Store(b)
}

// retire empties the transaction, but for the memory that the next one takes over.
func (t *Tx) retire() *Tx {
	if t == nil {
		return nil
	}
	clear(t.Inodes)
	clear(t.Order[:cap(t.Order)])
	clear(t.Usage.List[:cap(t.Usage.List)])
	*t = Tx{Order: t.Order[:0], Inodes: t.Inodes, Usage: usageSet{List: t.Usage.List[:0]}}
	return t
}

// slabCells is how many cells are made at once.
const slabCells = 32

// cellSlabs hands out cells, again from the first one on after a reset.
type cellSlabs struct {
	slabs [][]cell
	used  int // cells that were handed out
}

func (s *cellSlabs) next() *cell {
	slab, n := s.used/slabCells, s.used%slabCells
	if slab == len(s.slabs) {
		s.slabs = append(s.slabs, make([]cell, slabCells))
	}
	s.used++
	return &s.slabs[slab][n]
}

func (s *cellSlabs) reset() {
	for slab := range s.slabs[:(s.used+slabCells-1)/slabCells] {
		clear(s.slabs[slab])
	}
	s.used = 0
}
