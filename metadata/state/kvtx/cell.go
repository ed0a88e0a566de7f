package kvtx

import (
	"cmp"
	"slices"
)

// cell is the batch's knowledge of one key.
type cell struct {
	Key string
	// Value and Exists are the pair before the current command; they are valid if has is set.
	// Nobody changes the bytes of Value.
	Value       []byte
	Exists, has bool
	// stored is the pair in the store, which the running sum needs; it is valid if known is set.
	stored       []byte
	storedExists bool
	known        bool
	dirty        bool
	// Want is the pair that one command leaves behind; that command's writes carry the number
	// writer.
	writer uint64
	Want   write
	// decoded is the record that Look decoded from Value, or nil.
	decoded any
}

// write is the value that a command wants for a key.
type write struct {
	Value  []byte
	Exists bool
	Fresh  bool // the caller knows that the store has no such key
}

// cellOf returns the cell of key. A new cell has no value yet.
func (b *Batch) cellOf(key []byte) *cell {
	if c := b.cells[string(key)]; c != nil {
		return c
	}
	c := b.slabs.next()
	c.Key = string(key)
	b.cells[c.Key] = c
	return c
}

// Load returns the cell of key and reads it from the store if necessary.
func (b *Batch) Load(key []byte) (*cell, error) {
	c := b.cellOf(key)
	if c.has {
		return c, nil
	}
	return c, b.read(c, key)
}

// Fill reads a cell of the batch from the store if necessary.
func (b *Batch) Fill(c *cell) error {
	if c.has {
		return nil
	}
	return b.read(c, []byte(c.Key))
}

// read reads a cell from the store.
func (b *Batch) read(c *cell, key []byte) error {
	v, ok, err := b.kv.Get(key)
	if err != nil {
		return err
	}
	c.has, c.Exists, c.Value = true, ok, v
	c.known, c.storedExists, c.stored = true, ok, v
	return nil
}

// markDirty records that the cell differs from the store.
func (b *Batch) markDirty(c *cell) {
	if !c.dirty {
		c.dirty = true
		b.dirty = append(b.dirty, c)
	}
}

// Merge moves the command's writes into the batch.
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

// push writes the dirty cells to the store and updates the sum in memory. Flush writes the counters
// and the sum itself.
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

// Get implements Reader. It looks at the command's own writes, then at earlier commands of the
// entry, then at the store.
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

// ownPair is a pair that differs from the store's.
type ownPair struct {
	c *cell
	// mine says that the current command wrote the key before the scan began. The scan then shows
	// the key's latest value, otherwise its value when the scan began.
	mine bool
}

// Scan implements Reader. fn may call Get and Put.
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

// ownPairs returns, in key order, the pairs of lo <= key < hi that the current command and earlier
// commands of the entry wrote.
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
		w.Fresh = c.Want.Fresh // an earlier write of this command does not change what the store has
	} else {
		c.writer = t.seq
		t.Order = append(t.Order, c)
	}
	c.Want = w
}

// Put writes a pair. It takes ownership of value: the caller must not change it afterwards.
func (t *Tx) Put(key, value []byte) { t.set(key, write{Value: value, Exists: true}) }

// Insert is Put for a key that the store cannot have, such as one with a newly issued number. It
// avoids the read that the running sum would otherwise need.
func (t *Tx) Insert(key, value []byte) {
	t.set(key, write{Value: value, Exists: true, Fresh: true})
}

// Del removes a pair. Removing an absent key is allowed.
func (t *Tx) Del(key []byte) { t.set(key, write{}) }
