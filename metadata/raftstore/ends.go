package raftstore

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// ends knows where tables end. Many keys that the state machine reads do not
// exist yet. They are about to be appended: the answer to a session's next
// request, or the next name of a directory that is filled in order. Finding
// nothing in pebble costs more than finding something, a tenth of a create on
// each replica. A key past its table's end needs no search. Neither does a key
// that is not in a filter of its table. Such a filter is made if names come in
// random order, as those of renames do. There the searches took a sixth of a
// replica's work.
//
// A table here is the set of keys with the same first tablePrefix bytes: the
// entries of one directory, or the answers of one session. This is a guess
// about what is worth remembering, and correctness does not depend on it. An
// end that is too high only costs a search. The ends of whole tables are kept
// as well. Most of these have keys that begin with an increasing number, so a
// new inode and its records lie past them.
//
// It belongs to one database and to the goroutine that applies.
type ends struct {
	// Two halves, as in records: when recent is full, old is dropped.
	recent, old map[string]*tableEnd
	// filters is the size of recent's filters in bytes.
	filters int
	// whole has the ends of whole tables. They are few and have no filters.
	whole map[[wholePrefix]byte]*tableEnd
}

const (
	// tablePrefix is the length of the partition, the table byte and an ID.
	tablePrefix = wholePrefix + 8
	// wholePrefix is the length of the partition and the table byte.
	wholePrefix = 2 + 1
	// endMisses is the number of failed searches after which the end of a table is looked up.
	endMisses = 4
	// filterMisses is the number after which a filter is made: their cost equals reading some
	// hundred keys.
	filterMisses = 32
	// maxFiltered bounds the keys of a table that are read to make a filter.
	maxFiltered = 16 << 10
	// maxEnds bounds the tables in one half, maxFilters the bytes of their filters.
	maxEnds    = 16 << 10
	maxFilters = 8 << 20
)

type tableEnd struct {
	misses int
	// last is not below any key of the table; nil if unknown.
	last []byte
	// filter has every key of the table; nil if there is none.
	filter *filter
}

func newEnds() *ends {
	return &ends{recent: map[string]*tableEnd{}, whole: map[[wholePrefix]byte]*tableEnd{}}
}

// wholeOf returns the entry for the whole table of key; nil if there is none.
func (e *ends) wholeOf(key []byte) *tableEnd {
	if len(key) <= wholePrefix {
		return nil
	}
	return e.whole[[wholePrefix]byte(key)]
}

// of returns the entry for the table of key; nil if there is none.
func (e *ends) of(key []byte) *tableEnd {
	if len(key) <= tablePrefix {
		return nil
	}
	prefix := key[:tablePrefix]
	t := e.recent[string(prefix)]
	if t == nil {
		if t = e.old[string(prefix)]; t != nil {
			e.put(prefix, t)
		}
	}
	return t
}

func (e *ends) put(prefix []byte, t *tableEnd) {
	if len(e.recent) == maxEnds || e.filters > maxFilters {
		e.old, e.recent, e.filters = e.recent, map[string]*tableEnd{}, 0
	}
	e.recent[string(prefix)] = t
	e.filters += t.filter.size()
}

// absent reports that key is known not to exist.
func (e *ends) absent(key []byte) bool {
	if t := e.wholeOf(key); t.isPast(key) {
		return true
	}
	t := e.of(key)
	return t.isPast(key) || t != nil && t.filter != nil && !t.filter.has(key)
}

// isPast reports that the table is known to end before key.
func (t *tableEnd) isPast(key []byte) bool {
	return t != nil && t.last != nil && bytes.Compare(key, t.last) > 0
}

// wrote records that the table has key.
func (t *tableEnd) wrote(key []byte) {
	if t.isPast(key) {
		t.last = append(t.last[:0], key...)
	}
}

// wrote records that key exists.
func (e *ends) wrote(key []byte) {
	e.wholeOf(key).wrote(key)
	t := e.of(key)
	t.wrote(key)
	if t == nil || t.filter == nil {
		return
	}
	if t.filter.add(key); t.filter.room == 0 {
		e.filters -= t.filter.size()
		t.filter, t.misses = nil, endMisses // the next misses lead to a new filter of the right size
	}
}

// missed records a failed search for key. After several such searches it looks up the end of the
// table, and after more it makes a filter.
func (k *applyKV) missed(key []byte) error {
	if err := k.missedIn(key); err != nil || len(key) <= tablePrefix {
		return err
	}
	t := k.ends.of(key)
	if t == nil {
		t = &tableEnd{}
		k.ends.put(key[:tablePrefix], t)
	}
	var err error
	switch t.misses++; t.misses {
	case endMisses:
		t.last, err = k.lastOf(key[:tablePrefix])
	case filterMisses:
		t.filter, err = k.filterOf(key[:tablePrefix])
		k.ends.filters += t.filter.size()
	}
	return err
}

// missedIn records a failed search for the whole table of key.
func (k *applyKV) missedIn(key []byte) (err error) {
	if len(key) <= wholePrefix {
		return nil
	}
	t := k.ends.wholeOf(key)
	if t == nil {
		t = &tableEnd{}
		k.ends.whole[[wholePrefix]byte(key)] = t
	}
	if t.misses++; t.misses == endMisses {
		t.last, err = k.lastOf(key[:wholePrefix])
	}
	return err
}

// filterOf returns a filter of all keys that begin with prefix; nil if they are too many.
func (k *applyKV) filterOf(prefix []byte) (*filter, error) {
	var keys [][]byte
	it, err := k.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: prefixEnd(prefix)})
	if err != nil {
		return nil, err
	}
	for ok := it.First(); ok && len(keys) <= maxFiltered; ok = it.Next() {
		keys = append(keys, bytes.Clone(it.Key()))
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil || len(keys) > maxFiltered {
		return nil, err
	}
	for _, key := range k.above(bounds(prefix, prefixEnd(prefix))) {
		keys = append(keys, []byte(key))
	}
	f := newFilter(len(keys))
	for _, key := range keys {
		f.add(key)
	}
	return f, nil
}

// lastOf returns the last key that begins with prefix; prefix itself if there is none.
func (k *applyKV) lastOf(prefix []byte) ([]byte, error) {
	last := bytes.Clone(prefix)
	it, err := k.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: prefixEnd(prefix)})
	if err != nil {
		return nil, err
	}
	if it.Last() {
		last = append(last[:0], it.Key()...)
	}
	for _, key := range k.above(bounds(prefix, prefixEnd(prefix))) {
		if key > string(last) {
			last = append(last[:0], key...)
		}
	}
	return last, it.Close()
}

// prefixEnd returns the first key after all keys that begin with prefix; nil if there is none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
