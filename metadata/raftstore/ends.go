package raftstore

import (
	"bytes"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// ends knows where tables end. Much of what the state machine asks for is not
// there, because it is about to be appended: the answer to a session's next
// request, the next name of a directory that is filled in order. To find nothing
// in pebble costs more than to find something, a tenth of a create on each
// replica; a key past its table's end needs no search.
//
// A table is what shares the first tablePrefix bytes of its keys: for the state
// machine's, the entries of one directory, the answers of one session. That is
// a guess about what is worth a note, and nothing depends on it. An end that is
// too high is as good as true: it only costs a search.
//
// It belongs to one database and to the goroutine that applies.
type ends struct {
	// Two halves, as records has them: when recent is full old is forgotten.
	recent, old map[string]*tableEnd
}

const (
	// tablePrefix is the partition, the number of the table, and an id.
	tablePrefix = 2 + 1 + 8
	// endMisses is how many searches in vain show that a table's end is worth
	// finding.
	endMisses = 4
	// maxEnds bounds the tables in half of ends.
	maxEnds = 16 << 10
)

type tableEnd struct {
	misses int
	// last is no less than any key of the table; nil where it is not known.
	last []byte
}

func newEnds() *ends { return &ends{recent: map[string]*tableEnd{}} }

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
	if len(e.recent) == maxEnds {
		e.old, e.recent = e.recent, map[string]*tableEnd{}
	}
	e.recent[string(prefix)] = t
}

// passed reports that key lies past the end of its table: it is not there.
func (e *ends) passed(key []byte) bool {
	t := e.of(key)
	return t != nil && t.last != nil && bytes.Compare(key, t.last) > 0
}

// wrote notes that key is there.
func (e *ends) wrote(key []byte) {
	if t := e.of(key); t != nil && t.last != nil && bytes.Compare(key, t.last) > 0 {
		t.last = append(t.last[:0], key...)
	}
}

// missed notes that key was searched for in vain, and finds the end of its
// table after some such searches.
func (k *applyKV) missed(key []byte) error {
	if len(key) <= tablePrefix {
		return nil
	}
	t := k.ends.of(key)
	if t == nil {
		t = &tableEnd{}
		k.ends.put(key[:tablePrefix], t)
	}
	if t.misses++; t.misses != endMisses {
		return nil
	}
	last, err := k.lastOf(key[:tablePrefix])
	if err != nil {
		return err
	}
	t.last = last
	return nil
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
	for key := range k.writes { // which the database does not have yet
		if strings.HasPrefix(key, string(prefix)) && key > string(last) {
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
