package raftstore

import (
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
)

// layers is what the last commits wrote and the database does not have yet. To
// find the place of a key in the database's table in memory is most of what writing
// it costs, and the same keys are written by commit after commit: sessions, counters,
// the directories in which files are made. So commits are gathered here, and written
// to the database in one batch, each key once and in order; see stateDB.spill. Nothing is
// less durable for it: what a crash takes from here the log brings again, as it does with
// what the database had not flushed.
//
// One goroutine adds commits, and reads without a lock; any others read through at,
// each with the state as of the entry that it saw.
type layers struct {
	mu      sync.RWMutex // held to add, and to read by all others than who adds
	newest  map[string]*version
	commits []*layer
	bytes   int // of keys and values
}

const (
	// maxLayers, maxLayerKeys and maxLayerBytes bound what is gathered: more of it
	// makes a commit that has to write it out longer, and what a stop takes longer to
	// bring again.
	maxLayers     = 16
	maxLayerKeys  = 8192
	maxLayerBytes = 4 << 20
)

// version is what a commit wrote to a key. It is never changed.
type version struct {
	cell
	index  uint64   // of the commit's last entry
	before *version // what an earlier commit wrote, of those that are gathered
}

// layer is the keys of one commit.
type layer struct {
	index  uint64
	keys   []string
	sorted sync.Once
}

func newLayers() *layers { return &layers{newest: map[string]*version{}} }

// add takes in what the commit of entry index wrote.
func (l *layers) add(writes map[string]cell, index uint64) {
	next := &layer{index: index, keys: make([]string, 0, len(writes))}
	versions := make([]version, len(writes))
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range writes {
		v := &versions[len(next.keys)]
		*v = version{cell: c, index: index, before: l.newest[key]}
		if v.before != nil {
			v.fresh = v.before.fresh
		}
		next.keys = append(next.keys, key)
		l.newest[key] = v
		l.bytes += len(key) + len(c.value)
	}
	l.commits = append(l.commits, next)
}

// full reports that it is time to write out what was gathered.
func (l *layers) full() bool {
	return len(l.commits) >= maxLayers || len(l.newest) >= maxLayerKeys || l.bytes >= maxLayerBytes
}

// top returns what the last commit that wrote key made of it; false where none did. It is
// for the goroutine that adds.
func (l *layers) top(key string) (cell, bool) {
	if v := l.newest[key]; v != nil {
		return v.cell, true
	}
	return cell{}, false
}

// at is top as of entry index, for everybody.
func (l *layers) at(key string, index uint64) (cell, bool) {
	l.mu.RLock()
	v := l.newest[key]
	l.mu.RUnlock()
	for v != nil && v.index > index {
		v = v.before
	}
	if v == nil {
		return cell{}, false
	}
	return v.cell, true
}

// keysIn appends to keys those that commits up to entry index wrote, of lo <= key < hi;
// hi "" is the end. Some may come more than once, and in no order.
func (l *layers) keysIn(keys []string, lo, hi string, index uint64) []string {
	l.mu.RLock()
	commits := l.commits
	l.mu.RUnlock()
	for _, c := range commits {
		if c.index > index {
			break
		}
		c.sorted.Do(func() { slices.Sort(c.keys) })
		keys = append(keys, within(c.keys, lo, hi)...)
	}
	return keys
}

// allKeysIn is keysIn of every commit.
func (l *layers) allKeysIn(keys []string, lo, hi string) []string {
	return l.keysIn(keys, lo, hi, math.MaxUint64)
}

// within returns those of keys, which are in order, from lo on and before hi; "" is the
// end.
func within(keys []string, lo, hi string) []string {
	from := sort.SearchStrings(keys, lo)
	to := len(keys)
	if hi != "" {
		to = max(from, sort.SearchStrings(keys, hi))
	}
	return keys[from:to]
}

// pair is what is to be written to the database.
type pair struct {
	key string
	cell
}

// pairs returns what was gathered, in order of the keys.
func (l *layers) pairs() []pair {
	all := make([]pair, 0, len(l.newest))
	for key, v := range l.newest {
		all = append(all, pair{key, v.cell})
	}
	slices.SortFunc(all, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	return all
}
