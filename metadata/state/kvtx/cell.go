package kvtx

import (
	"cmp"
	"slices"
)

// cell is what a batch knows of one key.
type cell struct {
	Key string
	// The pair as the commands before the one at work left it; known where has is
	// set. value is never changed.
	Value       []byte
	Exists, has bool
	// The pair as the store has it, for the sum; known where known is set.
	stored       []byte
	storedExists bool
	known        bool
	dirty        bool
	// want is what the command whose writes have the number writer wrote.
	writer uint64
	Want   write
	// decoded is what look made of value; nil where it did not.
	decoded any
}

// write is what a command wants a key to be.
type write struct {
	Value  []byte
	Exists bool
	Fresh  bool // the caller knows that the store has no such key
}

// cellOf returns the cell of key; a new one knows nothing.
func (b *Batch) cellOf(key []byte) *cell {
	if c := b.cells[string(key)]; c != nil {
		return c
	}
	c := b.slabs.next()
	c.Key = string(key)
	b.cells[c.Key] = c
	return c
}

// Load returns the cell of key, read from the store if need be.
func (b *Batch) Load(key []byte) (*cell, error) {
	c := b.cellOf(key)
	if c.has {
		return c, nil
	}
	v, ok, err := b.kv.Get(key)
	if err != nil {
		return nil, err
	}
	c.has, c.Exists, c.Value = true, ok, v
	c.known, c.storedExists, c.stored = true, ok, v
	return c, nil
}

// markDirty notes that the cell differs from the store.
func (b *Batch) markDirty(c *cell) {
	if !c.dirty {
		c.dirty = true
		b.dirty = append(b.dirty, c)
	}
}

// Merge takes over what a command wrote.
func (b *Batch) Merge(t *Tx) {
	for _, c := range t.Order {
		if !c.has {
			c.known = c.Want.Fresh
		}
		c.Value, c.Exists, c.has, c.decoded = c.Want.Value, c.Want.Exists, true, nil
		b.markDirty(c)
	}
	b.Count = t.Count
	b.mergeUsage(t)
}

// push writes the dirty cells to the store and keeps the sum. It leaves the
// counters and the sum itself to Flush.
func (b *Batch) push() error {
	b.pushUsage()
	var key []byte
	for _, c := range b.dirty {
		key = append(key[:0], c.Key...)
		if !c.known {
			v, ok, err := b.kv.Get(key)
			if err != nil {
				return err
			}
			c.storedExists, c.known, c.stored = ok, true, v
		}
		if err := b.write(key, c); err != nil {
			return err
		}
		c.stored, c.storedExists, c.dirty = c.Value, c.Exists, false
	}
	b.dirty = b.dirty[:0]
	return nil
}

func (b *Batch) write(key []byte, c *cell) error {
	switch {
	case c.Exists && c.storedExists && string(c.Value) == string(c.stored):
		return nil
	case c.Exists:
		if c.storedExists {
			b.sum.Remove(key, c.stored)
		}
		b.sum.Add(key, c.Value)
		if b.inserter != nil && !c.storedExists {
			return b.inserter.Insert(key, c.Value)
		}
		return b.kv.Set(key, c.Value)
	case c.storedExists:
		b.sum.Remove(key, c.stored)
		return b.kv.Delete(key)
	}
	return nil
}

// Get implements Reader: the command's own writes, then those of the commands
// before it in the entry, then the store.
func (t *Tx) Get(key []byte) ([]byte, bool, error) {
	if c := t.B.cells[string(key)]; c != nil && c.writer == t.seq {
		return c.Want.Value, c.Want.Exists, nil
	}
	c, err := t.B.Load(key)
	if err != nil {
		return nil, false, err
	}
	return c.Value, c.Exists, nil
}

// ownPair is a pair that the store does not have just so.
type ownPair struct {
	c *cell
	// mine says that the command at work had written it when the scan began: then
	// the scan shows what it is when its turn comes, else what it was.
	mine bool
}

// Scan implements Reader. fn may get and put.
func (t *Tx) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	own := t.ownPairs(string(lo), string(hi), hi == nil)
	more := true
	show := func(p ownPair) {
		value, exists := p.c.Value, p.c.Exists
		if p.mine {
			value, exists = p.c.Want.Value, p.c.Want.Exists
		}
		if exists {
			more = fn([]byte(p.c.Key), value)
		}
	}
	err := t.B.kv.Scan(lo, hi, func(key, value []byte) bool {
		for more && len(own) > 0 && own[0].c.Key < string(key) {
			show(own[0])
			own = own[1:]
		}
		switch {
		case !more:
		case len(own) > 0 && own[0].c.Key == string(key):
			show(own[0])
			own = own[1:]
		default:
			more = fn(key, value)
		}
		return more
	})
	if err != nil {
		return err
	}
	for ; more && len(own) > 0; own = own[1:] {
		show(own[0])
	}
	return nil
}

// ownPairs returns the pairs of lo <= key < hi that this command and those before
// it in the entry wrote, in order.
func (t *Tx) ownPairs(lo, hi string, open bool) (own []ownPair) {
	in := func(c *cell) bool { return c.Key >= lo && (open || c.Key < hi) }
	t.B.pushUsage()
	for _, c := range t.B.dirty {
		if in(c) && c.writer != t.seq {
			own = append(own, ownPair{c: c})
		}
	}
	for _, c := range t.Order {
		if in(c) {
			own = append(own, ownPair{c: c, mine: true})
		}
	}
	slices.SortFunc(own, func(a, b ownPair) int { return cmp.Compare(a.c.Key, b.c.Key) })
	return own
}

func (t *Tx) set(key []byte, w write) {
	c := t.B.cellOf(key)
	if c.writer == t.seq {
		w.Fresh = c.Want.Fresh // what the store has is not changed by an earlier write of this command
	} else {
		c.writer = t.seq
		t.Order = append(t.Order, c)
	}
	c.Want = w
}

// Put writes a pair. It takes ownership of value, which nobody changes any more.
func (t *Tx) Put(key, value []byte) { t.set(key, write{Value: value, Exists: true}) }

// Insert is put of a key that the store cannot have, such as one that names a
// new number: it spares the read that keeping the sum would cost.
func (t *Tx) Insert(key, value []byte) {
	t.set(key, write{Value: value, Exists: true, Fresh: true})
}

// Del removes a pair; removing what is not there is fine.
func (t *Tx) Del(key []byte) { t.set(key, write{}) }
