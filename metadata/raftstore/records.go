package raftstore

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// records caches the newest values of recently used keys, so that most lookups do not search
// pebble. The apply loop reads the same directories, sessions and counters in batch after batch,
// and clients read what was just created.
//
// It has the database's values. A reader first asks the layers above the
// database, and asks here only for keys that no layer of its view has. A value
// is right for the state after entry `since` and for every later spilled state.
// A spill replaces the values that it writes before pebble shows them. A view
// after entry `at` may therefore use only values with since <= at. A goroutine
// that read a value from a view may add it only if no later spill has begun.
//
// Spills come one at a time; everything else may be called concurrently. A records belongs to one
// database.
type records struct {
	seed maphash.Seed
	room int // capacity of half a shard, in bytes
	// begun is the index of the last spill that began.
	begun  atomic.Uint64
	shards [recordShards]recordShard
}

const (
	recordShards = 64
	// recordOverhead is approximately the maps' memory for a value besides its bytes.
	recordOverhead = 160
	// maxRecord bounds the size of a cached value. Larger ones are few and seldom read.
	maxRecord = 8 << 10
)

// recordShard has a part of the keys in two halves: those used since the last exchange, and earlier
// ones. When the first is full, the second is dropped.
type recordShard struct {
	mu          sync.Mutex
	recent, old map[string]record
	size        int // bytes of recent
}

type record struct {
	value []byte // never changes
	since uint64
	sum   uint32 // checksum of key and value
}

// newRecords returns an empty cache of about size bytes for a database with every entry up to
// index.
func newRecords(size int64, index uint64) *records {
	r := &records{seed: maphash.MakeSeed(), room: int(size / recordShards / 2)}
	r.begun.Store(index)
	for i := range r.shards {
		r.shards[i].recent = map[string]record{}
	}
	return r
}

func (r *records) shard(key []byte) *recordShard {
	return &r.shards[maphash.Bytes(r.seed, key)%recordShards]
}

// get returns the value of key in the state after entry at, if known, after comparing its checksum.
// The caller must not change it.
func (r *records) get(key []byte, at uint64) ([]byte, bool, error) {
	rec, ok := r.find(key, at)
	if !ok {
		return nil, false, nil
	}
	return rec.value, true, checkValue(key, rec.value, rec.sum)
}

func (r *records) find(key []byte, at uint64) (record, bool) {
	s := r.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.recent[string(key)]
	if !ok {
		if rec, ok = s.old[string(key)]; ok {
			s.put(string(key), rec, r.room)
		}
	}
	return rec, ok && rec.since <= at
}

// add caches a value that was read from the state after entry at. It keeps value, which must not
// change.
func (r *records) add(key, value []byte, sum uint32, at uint64) {
	if len(value) > maxRecord {
		return
	}
	s := r.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	// A spill that begins after this check reaches this shard after us.
	if r.begun.Load() <= at {
		s.put(string(key), record{value, at, sum}, r.room)
	}
}

// spill records the pairs that the spill up to entry index is about to write. It is called before
// readers can see them. When it returns, either the spill happens or the database is no longer
// used.
func (r *records) spill(pairs []pair, index uint64) {
	r.begun.Store(index)
	for _, p := range pairs {
		s := &r.shards[maphash.String(r.seed, p.key)%recordShards]
		s.mu.Lock()
		if p.there && len(p.value) <= maxRecord {
			s.put(p.key, record{p.value, index, p.sum}, r.room)
		} else {
			delete(s.recent, p.key) // its size goes at the next exchange
			delete(s.old, p.key)
		}
		s.mu.Unlock()
	}
}

// put makes rec the newest value of key. The caller holds mu.
func (s *recordShard) put(key string, rec record, room int) {
	if s.size > room {
		s.old, s.recent, s.size = s.recent, make(map[string]record, len(s.recent)), 0
	}
	// From here on this hides old's value of key, and old is dropped first.
	before, ok := s.recent[key]
	if !ok {
		s.size += recordOverhead + len(key)
	}
	s.size += len(rec.value) - len(before.value)
	s.recent[key] = rec
}
