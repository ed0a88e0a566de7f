package leases

import (
	"sort"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// maxChanges is the number of changes that a server remembers: those of a few seconds of the
// fastest creates.
const maxChanges = 256 << 10

// maxWatched is approximately the number of changes, of the whole namespace, that one answer to a
// watch inspects.
const maxWatched = 4096

// changes are the last items that log entries touched. Every server keeps them, whether it leads or
// not. A new leader uses them to find what a returning session missed, and a watch continues with
// them on another server. It is not safe for concurrent use.
type changes struct {
	limit int
	ring  []Change
	start int // index in ring of the oldest change
	// floor: all changes of later entries are present.
	floor uint64
	last  uint64 // index of the last entry recorded
	count uint64 // number of entries in the state, as of last
}

// Change is one touched item. An empty Touch means that a directory moved to another parent.
type Change struct {
	Index uint64
	Touch kvtx.Touch
}

func (c Change) moved() bool { return c.Touch == kvtx.Touch{} }

// note records what the entry at index touched; count is the number of entries that the state has
// applied with it. A gap, for example after a snapshot, deletes the earlier changes.
func (c *changes) note(index, count uint64, results []state.Result) {
	if c.last == 0 || count != c.count+1 {
		c.ring, c.start, c.floor = nil, 0, index-1
	}
	c.last, c.count = index, count
	for i := range results {
		for _, t := range results[i].Touched {
			c.add(Change{index, t})
		}
		if results[i].Events.TreeMoved {
			c.add(Change{Index: index})
		}
	}
}

func (c *changes) add(ch Change) {
	if len(c.ring) < c.limit {
		c.ring = append(c.ring, ch)
		return
	}
	c.floor = c.ring[c.start].Index
	c.ring[c.start] = ch
	c.start = (c.start + 1) % len(c.ring)
}

// covers reports whether all changes after an entry are known.
func (c *changes) covers(index uint64) bool {
	return c.last != 0 && index >= c.floor && index <= c.last
}

// at returns the i-th change, oldest first.
func (c *changes) at(i int) *Change { return &c.ring[(c.start+i)%len(c.ring)] }

// since calls fn with the changes of entries after index, oldest first, until fn returns false.
func (c *changes) since(index uint64, fn func(*Change) bool) {
	first := sort.Search(len(c.ring), func(i int) bool { return c.at(i).Index > index })
	for i := first; i < len(c.ring); i++ {
		if !fn(c.at(i)) {
			return
		}
	}
}

// ChangedSince returns the changes of the entries after after, and the last of these entries. If
// some are no longer known, covered is false and next is where to start again. more is closed at
// the next change; it is nil if there are more already.
func (t *Table) ChangedSince(after uint64) (found []Change, next uint64, covered bool, more <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after == 0 || !t.changes.covers(after) {
		return nil, t.changes.last, false, nil
	}
	next = t.changes.last
	cut := false
	t.changes.since(after, func(c *Change) bool {
		if len(found) >= maxWatched && c.Index != found[len(found)-1].Index {
			cut = true
			return false
		}
		found = append(found, *c)
		return true
	})
	if cut {
		return found, found[len(found)-1].Index, true, nil
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return found, next, true, t.changed
}
