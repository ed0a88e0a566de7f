package raftstore

import (
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
)

// layers has the writes of the last commits that are not in the database yet. Most of the cost of a
// write is finding the key's place in the database's table in memory. The same keys are written by
// commit after commit: sessions, counters, directories in which files are created. Commits are
// therefore collected here and written to the database in one batch, each key once and in order;
// see stateDB.spill. This does not reduce durability: after a crash the log delivers these commits
// again, like everything that the database had not flushed.
//
// One goroutine adds commits and reads without a lock. All others read through at, each with the
// state after the entry that it saw.
type layers struct {
	mu      sync.RWMutex // locked to add, and by readers other than the adding goroutine
	newest  map[string]*version
	commits []*layer
	bytes   int // bytes of keys and values
}

const (
	// maxLayers, maxLayerKeys and maxLayerBytes bound what is collected. More would lengthen a
	// commit that must write it out, and the replay after a stop.
	maxLayers     = 16
	maxLayerKeys  = 8192
	maxLayerBytes = 4 << 20
)

// version is a commit's write to a key. It never changes.
type version struct {
	cell
	index  uint64   // index of the commit's last entry
	before *version // the write of an earlier collected commit
}

// layer has the keys of one commit.
type layer struct {
	index  uint64
	keys   []string
	sorted sync.Once
}

func newLayers() *layers { return &layers{newest: map[string]*version{}} }

// add adds the writes of the commit of entry index.
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

// full reports that it is time to write out the collected commits.
func (l *layers) full() bool {
	return len(l.commits) >= maxLayers || len(l.newest) >= maxLayerKeys || l.bytes >= maxLayerBytes
}

// top returns the last write to key; false if there is none. Only the adding goroutine may call it.
func (l *layers) top(key string) (cell, bool) {
	if v := l.newest[key]; v != nil {
		return v.cell, true
	}
	return cell{}, false
}

// at is top as of entry index, for all goroutines.
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

// keysIn appends to keys the keys of lo <= key < hi written by commits up to entry index; hi "" is
// the end. Keys may repeat and are unordered.
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

// allKeysIn is keysIn for every commit.
func (l *layers) allKeysIn(keys []string, lo, hi string) []string {
	return l.keysIn(keys, lo, hi, math.MaxUint64)
}

// within returns the sorted keys from lo up to hi; "" is the end.
func within(keys []string, lo, hi string) []string {
	from := sort.SearchStrings(keys, lo)
	to := len(keys)
	if hi != "" {
		to = max(from, sort.SearchStrings(keys, hi))
	}
	return keys[from:to]
}

// pair is a pair to write to the database.
type pair struct {
	key string
	cell
}

// pairs returns everything collected, in key order.
func (l *layers) pairs() []pair {
	all := make([]pair, 0, len(l.newest))
	for key, v := range l.newest {
		all = append(all, pair{key, v.cell})
	}
	slices.SortFunc(all, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	return all
}
