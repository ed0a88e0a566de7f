package raftstore

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// records keeps the newest values of keys of the state that were written or
// read lately, so that most look-ups do not search pebble: the apply loop meets
// the same directories, sessions and counters in batch after batch, and reads
// ask for what was just made.
//
// It has what the database has: who reads asks the layers above that first, and only what
// no layer of its view has, here. A value is known to be right for the state as of entry
// `since` and for every later one that was spilled: a spill replaces the values of what it
// writes before pebble shows it. So a view of the state after entry `at` may use the
// values with since <= at, and no other. The one who reads a value out of a
// view may add it while no later spill has begun.
//
// Spills come one at a time; everything else may be called concurrently. A
// records belongs to one database: with another one comes another records.
type records struct {
	seed maphash.Seed
	room int // bytes of half a shard
	// begun is the index of the last spill that has begun.
	begun  atomic.Uint64
	shards [recordShards]recordShard
}

const (
	recordShards = 64
	// recordOverhead is about what the maps take for a value beside its bytes.
	recordOverhead = 160
	// maxRecord bounds a value that is kept: larger ones are few, and seldom read.
	maxRecord = 8 << 10
)

// recordShard holds a part of the keys, in two halves: what was used since the
// halves were last exchanged, and before. When the first is full the second is
// forgotten.
type recordShard struct {
	mu          sync.Mutex
	recent, old map[string]record
	size        int // bytes of recent
}

type record struct {
	value []byte // never changed
	since uint64
	sum   uint32 // of key and value
}

// newRecords returns an empty cache of about size bytes for a database that
// holds every entry up to index.
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

// get returns the value that key has in the state after entry at, if that is
// known, compared with its checksum. It must not be changed.
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

// add takes in a value that was read from the state after entry at. It keeps
// value, which must not be changed.
func (r *records) add(key, value []byte, sum uint32, at uint64) {
	if len(value) > maxRecord {
		return
	}
	s := r.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	// A spill that begins after this look comes to this shard after us.
	if r.begun.Load() <= at {
		s.put(string(key), record{value, at, sum}, r.room)
	}
}

// spill takes in what the spill up to entry index is about to write. It is
// called before that can be seen, and when it returns the spill either
// happens or the database is not used any more.
func (r *records) spill(pairs []pair, index uint64) {
	r.begun.Store(index)
	for _, p := range pairs {
		s := &r.shards[maphash.String(r.seed, p.key)%recordShards]
		s.mu.Lock()
		if p.there && len(p.value) <= maxRecord {
			s.put(p.key, record{p.value, index, p.sum}, r.room)
		} else {
			delete(s.recent, p.key) // its size goes with the next exchange
			delete(s.old, p.key)
		}
		s.mu.Unlock()
	}
}

// put makes rec the newest value of key. mu is held.
func (s *recordShard) put(key string, rec record, room int) {
	if s.size > room {
		s.old, s.recent, s.size = s.recent, make(map[string]record, len(s.recent)), 0
	}
	// What old has for key is hidden from here on, and goes before this does.
	before, ok := s.recent[key]
	if !ok {
		s.size += recordOverhead + len(key)
	}
	s.size += len(rec.value) - len(before.value)
	s.recent[key] = rec
}
