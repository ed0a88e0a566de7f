package raftstore

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// ends knows where tables end. Much of what the state machine asks for is not
// there, because it is about to be appended: the answer to a session's next
// request, the next name of a directory that is filled in order. To find nothing
// in pebble costs more than to find something, a tenth of a create on each
// replica; a key past its table's end needs no search. Nor does one that a filter
// of the table's keys does not have, which is made where names come in any order,
// as those of renames do: there the search was a sixth of all that a replica did.
//
// A table is what shares the first tablePrefix bytes of its keys: for the state
// machine's, the entries of one directory, the answers of one session. That is
// a guess about what is worth a note, and nothing depends on it. An end that is
// too high is as good as true: it only costs a search. The ends of whole tables are
// kept beside them: most of those hold keys that begin with a number which only
// rises, so that a new inode, and what belongs to a new file, lies past them.
//
// It belongs to one database and to the goroutine that applies.
type ends struct {
	// Two halves, as records has them: when recent is full old is forgotten.
	recent, old map[string]*tableEnd
	// filters is what the filters of recent take, in bytes.
	filters int
	// whole has the ends of tables as a whole. They are few, and have no filters.
	whole map[[wholePrefix]byte]*tableEnd
}

const (
	// tablePrefix is the partition, the number of the table, and an id.
	tablePrefix = wholePrefix + 8
	// wholePrefix is the partition and the number of the table.
	wholePrefix = 2 + 1
	// endMisses is how many searches in vain show that a table's end is worth
	// finding.
	endMisses = 4
	// filterMisses is how many show that a filter is: as many as it takes to read
	// some hundred keys.
	filterMisses = 32
	// maxFiltered bounds the keys of a table that are read for a filter.
	maxFiltered = 16 << 10
	// maxEnds bounds the tables in half of ends, maxFilters the bytes of their
	// filters.
	maxEnds    = 16 << 10
	maxFilters = 8 << 20
)

type tableEnd struct {
	misses int
	// last is no less than any key of the table; nil where it is not known.
	last []byte
	// filter has every key of the table; nil where there is none.
	filter *filter
}

func newEnds() *ends {
	return &ends{recent: map[string]*tableEnd{}, whole: map[[wholePrefix]byte]*tableEnd{}}
}

// wholeOf returns what is known of the whole table of key, nil for nothing.
func (e *ends) wholeOf(key []byte) *tableEnd {
	if len(key) <= wholePrefix {
		return nil
	}
	return e.whole[[wholePrefix]byte(key)]
}

// of returns what is known of the table of key, nil for nothing.
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

// absent reports that key is known not to be there.
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

// wrote notes that the table has key.
func (t *tableEnd) wrote(key []byte) {
	if t.isPast(key) {
		t.last = append(t.last[:0], key...)
	}
}

// wrote notes that key is there.
func (e *ends) wrote(key []byte) {
	e.wholeOf(key).wrote(key)
	t := e.of(key)
	t.wrote(key)
	if t == nil || t.filter == nil {
		return
	}
	if t.filter.add(key); t.filter.room == 0 {
		e.filters -= t.filter.size()
		t.filter, t.misses = nil, endMisses // the next misses make one of the right size
	}
}

// missed notes that key was searched for in vain. After some such searches it
// finds the end of its table, and after some more makes a filter of it.
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

// missedIn notes a search in vain for the whole table of key.
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

// filterOf returns a filter of all keys that begin with prefix, nil where they are
// too many.
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

// lastOf returns the last key that begins with prefix, prefix itself where there
// is none.
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

// prefixEnd returns the first key past all that begin with prefix, nil if there
// is none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
