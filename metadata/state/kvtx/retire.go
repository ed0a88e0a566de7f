package kvtx

// The cells are by far the largest memory of a batch, and the next batch needs as many. A flushed
// batch therefore passes its memory on.

// maxRetired is the largest number of cells of a batch whose memory is kept. Larger entries are
// rare, and clearing a large map takes as long as filling it.
const maxRetired = 4096

// newBatch returns an empty batch, in the memory of an earlier one if available.
func (s *Space) newBatch() *Batch {
	if b := s.spare.Swap(nil); b != nil {
		return b
	}
	return &Batch{Space: s, k: s.K, cells: make(map[string]*cell, 4*slabCells)}
}

// retire makes the memory of a flushed batch available to later ones. No Result refers to it.
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

// retire clears the transaction but keeps the memory that the next one reuses.
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

// slabCells is the number of cells allocated at once.
const slabCells = 32

// cellSlabs allocates cells. After a reset it starts again from the first.
type cellSlabs struct {
	slabs [][]cell
	used  int // cells in use
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
