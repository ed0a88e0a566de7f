package state

import (
	"cmp"
	"slices"
)

// cell is what a batch knows of one key.
type cell struct {
	key string
	// The pair as the commands before the one at work left it; known where has is
	// set. value is never changed.
	value       []byte
	exists, has bool
	// The pair as the store has it, for the sum; known where known is set.
	stored       []byte
	storedExists bool
	known        bool
	dirty        bool
	// want is what the command whose writes have the number writer wrote.
	writer uint64
	want   write
	// decoded is what look made of value; nil where it did not.
	decoded any
}

// write is what a command wants a key to be.
type write struct {
	value  []byte
	exists bool
	fresh  bool // the caller knows that the store has no such key
}

// cellOf returns the cell of key; a new one knows nothing.
func (b *Batch) cellOf(key []byte) *cell {
	if c := b.cells[string(key)]; c != nil {
		return c
	}
	c := b.slabs.next()
	c.key = string(key)
	b.cells[c.key] = c
	return c
}

// load returns the cell of key, read from the store if need be.
func (b *Batch) load(key []byte) (*cell, error) {
	c := b.cellOf(key)
	if c.has {
		return c, nil
	}
	v, ok, err := b.kv.Get(key)
	if err != nil {
		return nil, err
	}
	c.has, c.exists, c.value = true, ok, v
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

// merge takes over what a command wrote.
func (b *Batch) merge(t *tx) {
	for _, c := range t.order {
		if !c.has {
			c.known = c.want.fresh
		}
		c.value, c.exists, c.has, c.decoded = c.want.value, c.want.exists, true, nil
		b.markDirty(c)
	}
	b.count = t.count
	b.mergeUsage(t)
}

// push writes the dirty cells to the store and keeps the sum. It leaves the
// counters and the sum itself to Flush.
func (b *Batch) push() error {
	b.pushUsage()
	var key []byte
	for _, c := range b.dirty {
		key = append(key[:0], c.key...)
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
		c.stored, c.storedExists, c.dirty = c.value, c.exists, false
	}
	b.dirty = b.dirty[:0]
	return nil
}

func (b *Batch) write(key []byte, c *cell) error {
	switch {
	case c.exists && c.storedExists && string(c.value) == string(c.stored):
		return nil
	case c.exists:
		if c.storedExists {
			b.sum.Remove(key, c.stored)
		}
		b.sum.Add(key, c.value)
		if b.inserter != nil && !c.storedExists {
			return b.inserter.Insert(key, c.value)
		}
		return b.kv.Set(key, c.value)
	case c.storedExists:
		b.sum.Remove(key, c.stored)
		return b.kv.Delete(key)
	}
	return nil
}

// Get implements Reader: the command's own writes, then those of the commands
// before it in the entry, then the store.
func (t *tx) Get(key []byte) ([]byte, bool, error) {
	if c := t.b.cells[string(key)]; c != nil && c.writer == t.seq {
		return c.want.value, c.want.exists, nil
	}
	c, err := t.b.load(key)
	if err != nil {
		return nil, false, err
	}
	return c.value, c.exists, nil
}

// ownPair is a pair that the store does not have just so.
type ownPair struct {
	c *cell
	// mine says that the command at work had written it when the scan began: then
	// the scan shows what it is when its turn comes, else what it was.
	mine bool
}

// Scan implements Reader. fn may get and put.
func (t *tx) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	own := t.ownPairs(string(lo), string(hi), hi == nil)
	more := true
	show := func(p ownPair) {
		value, exists := p.c.value, p.c.exists
		if p.mine {
			value, exists = p.c.want.value, p.c.want.exists
		}
		if exists {
			more = fn([]byte(p.c.key), value)
		}
	}
	err := t.b.kv.Scan(lo, hi, func(key, value []byte) bool {
		for more && len(own) > 0 && own[0].c.key < string(key) {
			show(own[0])
			own = own[1:]
		}
		switch {
		case !more:
		case len(own) > 0 && own[0].c.key == string(key):
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
func (t *tx) ownPairs(lo, hi string, open bool) (own []ownPair) {
	in := func(c *cell) bool { return c.key >= lo && (open || c.key < hi) }
	t.b.pushUsage()
	for _, c := range t.b.dirty {
		if in(c) && c.writer != t.seq {
			own = append(own, ownPair{c: c})
		}
	}
	for _, c := range t.order {
		if in(c) {
			own = append(own, ownPair{c: c, mine: true})
		}
	}
	slices.SortFunc(own, func(a, b ownPair) int { return cmp.Compare(a.c.key, b.c.key) })
	return own
}

func (t *tx) set(key []byte, w write) {
	c := t.b.cellOf(key)
	if c.writer == t.seq {
		w.fresh = c.want.fresh // what the store has is not changed by an earlier write of this command
	} else {
		c.writer = t.seq
		t.order = append(t.order, c)
	}
	c.want = w
}

// put writes a pair. It takes ownership of value, which nobody changes any more.
func (t *tx) put(key, value []byte) { t.set(key, write{value: value, exists: true}) }

// insert is put of a key that the store cannot have, such as one that names a
// new number: it spares the read that keeping the sum would cost.
func (t *tx) insert(key, value []byte) {
	t.set(key, write{value: value, exists: true, fresh: true})
}

// del removes a pair; removing what is not there is fine.
func (t *tx) del(key []byte) { t.set(key, write{}) }
