package kvtx

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// UsageKey names the count of a directory in one of two columns. One column is in force. A recount
// builds the other, or removes it afterwards.
type UsageKey struct {
	Column uint8
	Dir    moraine.InodeID
}

// usageCell is the batch's knowledge of a count.
type usageCell struct {
	cell  *cell
	Now   record.Usage
	dirty bool
}

// usageCell returns the cell of a count and reads it from the store if necessary.
func (b *Batch) usageCell(k UsageKey) (*usageCell, error) {
	if c := b.usage[k]; c != nil {
		return c, nil
	}
	key := b.k.Usage(k.Column, k.Dir)
	below, err := b.Load(key)
	if err != nil {
		return nil, err
	}
	c := &usageCell{cell: below}
	if below.Exists {
		if err := c.Now.Decode(below.Value); err != nil {
			return nil, err
		}
	}
	if b.usage == nil {
		b.usage = make(map[UsageKey]*usageCell, 16)
	}
	b.usage[k] = c
	return c, nil
}

// mergeUsage moves the command's counts into the batch.
func (b *Batch) mergeUsage(t *Tx) {
	for _, e := range t.Usage.List {
		if e.Delta.Zero() {
			continue
		}
		e.Cell.Now = e.Cell.Now.Add(e.Delta)
		if !e.Cell.dirty {
			e.Cell.dirty = true
			b.dirtyUsage = append(b.dirtyUsage, e.Cell)
		}
	}
}

// pushUsage turns changed counts into dirty cells, once for all commands of an entry.
func (b *Batch) pushUsage() {
	for _, c := range b.dirtyUsage {
		c.dirty = false
		c.cell.Value, c.cell.Exists = nil, !c.Now.Zero()
		if c.cell.Exists {
			c.cell.Value = c.Now.Encode()
		}
		b.markDirty(c.cell)
	}
	b.dirtyUsage = b.dirtyUsage[:0]
}

// usageEntry is a change of one count by one command.
type usageEntry struct {
	UsageKey
	Cell  *usageCell
	Delta record.Usage
	// Free is the part of the change that needs no quota check.
	Free record.Usage
}

// usageSet has one command's changes of counts. Most commands change only those along one path.
type usageSet struct {
	List  []usageEntry
	index map[UsageKey]int // only for long lists
}

const shortUsage = 24

// Reset empties the set and keeps its memory.
func (s *usageSet) Reset() { s.List, s.index = s.List[:0], nil }

func (s *usageSet) find(k UsageKey) *usageEntry {
	if s.index != nil {
		if n, ok := s.index[k]; ok {
			return &s.List[n]
		}
		return nil
	}
	for n := range s.List {
		if s.List[n].UsageKey == k {
			return &s.List[n]
		}
	}
	return nil
}

func (s *usageSet) insert(e usageEntry) *usageEntry {
	s.List = append(s.List, e)
	switch {
	case s.index != nil:
		s.index[e.UsageKey] = len(s.List) - 1
	case len(s.List) > shortUsage:
		s.index = make(map[UsageKey]int, 2*len(s.List))
		for n := range s.List {
			s.index[s.List[n].UsageKey] = n
		}
	}
	return &s.List[len(s.List)-1]
}

// CountUsage adds delta to one count. If free is set, quotas do not apply to it.
func (t *Tx) CountUsage(k UsageKey, delta record.Usage, free bool) error {
	e := t.Usage.find(k)
	if e == nil {
		c, err := t.B.usageCell(k)
		if err != nil {
			return err
		}
		e = t.Usage.insert(usageEntry{UsageKey: k, Cell: c})
	}
	e.Delta = e.Delta.Add(delta)
	if free {
		e.Free = e.Free.Add(delta)
	}
	return nil
}

// UsageNow returns a count including the command's own changes.
func (t *Tx) UsageNow(k UsageKey) (record.Usage, error) {
	if e := t.Usage.find(k); e != nil {
		return e.Cell.Now.Add(e.Delta), nil
	}
	c, err := t.B.usageCell(k)
	if err != nil {
		return record.Usage{}, err
	}
	return c.Now, nil
}
