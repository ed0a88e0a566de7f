package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine/metadata/state"
)

// reserved is the first key that is not the state machine's: what lies from
// there on is this package's own. State keys begin with a partition number, so
// that partition 65535 does not exist.
var reserved = []byte{0xff, 0xff}

// pebbleReader is what a DB, a snapshot and an indexed batch have in common.
type pebbleReader interface {
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

// scan implements state.Reader.Scan over r.
func scan(r pebbleReader, lo, hi []byte, fn func(key, value []byte) bool) (err error) {
	if hi == nil || bytes.Compare(hi, reserved) > 0 {
		hi = reserved
	}
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lo, UpperBound: hi})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if !fn(it.Key(), value) {
			return nil
		}
	}
	return it.Error()
}

// snapReader reads a snapshot of the state.
type snapReader struct{ snap *pebble.Snapshot }

var _ state.Reader = snapReader{}

// Get implements state.Reader. The slice stays as it is.
func (s snapReader) Get(key []byte) ([]byte, bool, error) {
	value, closer, err := s.snap.Get(key)
	if err == pebble.ErrNotFound {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	out := bytes.Clone(value)
	return out, true, closer.Close()
}

// Scan implements state.Reader.
func (s snapReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return scan(s.snap, lo, hi, fn)
}

// applyKV is the state while one batch of entries is applied: the database
// below, what the batch wrote above it. Point reads are answered from a map of
// what the batch has written, then from the records, then from what is known not
// to be there, then from the database, which is what costs.
//
// What the batch wrote goes into the database's batch at the end, each key once
// and in order: neighbours then find their place in the memtable from each
// other's, which is most of what writing costs. A scan of what was written gives
// it an indexed batch, which merges, from then on.
type applyKV struct {
	db      *pebble.DB
	records *records
	ends    *ends
	at      uint64 // index that db has reached
	writes  map[string]cell
	indexed *pebble.Batch // nil until a scan needs one
}

// cell is what a batch wrote to a key; there is false where it deleted it.
type cell struct {
	value []byte
	there bool
}

var _ state.KV = (*applyKV)(nil)

// newApplyKV begins a batch on the state as it is; nobody else may be writing.
func (s *stateDB) newApplyKV() *applyKV {
	return &applyKV{db: s.db, records: s.records, ends: s.ends, at: s.records.begun.Load(), writes: make(map[string]cell, s.lastWrites)}
}

// Get implements state.Reader. The slice is never changed.
func (k *applyKV) Get(key []byte) ([]byte, bool, error) {
	if c, ok := k.writes[string(key)]; ok {
		return c.value, c.there, nil
	}
	if value, ok := k.records.get(key, k.at); ok {
		return value, true, nil
	}
	if k.ends.absent(key) {
		return nil, false, nil
	}
	value, closer, err := k.db.Get(key)
	if err == pebble.ErrNotFound {
		return nil, false, k.missed(key)
	}
	if err != nil {
		return nil, false, err
	}
	own := bytes.Clone(value)
	k.records.add(key, own, k.at)
	return own, true, closer.Close()
}

// manyWrites is how many writes are worth an index before a scan.
const manyWrites = 512

// Scan implements state.Reader.
func (k *applyKV) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	if k.indexed == nil && len(k.writes) < manyWrites && !k.wroteIn(string(lo), string(hi), hi == nil) {
		return scan(k.db, lo, hi, fn)
	}
	if err := k.index(); err != nil {
		return err
	}
	return scan(k.indexed, lo, hi, fn)
}

// wroteIn reports whether a key was written of lo <= key < hi.
func (k *applyKV) wroteIn(lo, hi string, open bool) bool {
	for key := range k.writes {
		if key >= lo && (open || key < hi) {
			return true
		}
	}
	return false
}

// index makes the indexed batch.
func (k *applyKV) index() error {
	if k.indexed != nil {
		return nil
	}
	k.indexed = k.db.NewIndexedBatch()
	var err error
	for key, c := range k.writes {
		if c.there {
			err = errors.Join(err, k.indexed.Set([]byte(key), c.value, nil))
		} else {
			err = errors.Join(err, k.indexed.Delete([]byte(key), nil))
		}
	}
	return err
}

// inOrder returns a batch of all that was written, in order of the keys.
func (k *applyKV) inOrder() (*pebble.Batch, error) {
	batch := k.db.NewBatch()
	var key []byte
	for _, name := range slices.Sorted(maps.Keys(k.writes)) {
		key = append(key[:0], name...)
		var err error
		if c := k.writes[name]; c.there {
			err = batch.Set(key, c.value, nil)
		} else {
			err = batch.Delete(key, nil)
		}
		if err != nil {
			return nil, errors.Join(err, batch.Close())
		}
	}
	return batch, nil
}

// close frees what the batch took, committed or not.
func (k *applyKV) close() error {
	if k.indexed == nil {
		return nil
	}
	return k.indexed.Close()
}

// Set implements state.KV.
func (k *applyKV) Set(key, value []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	k.ends.wrote(key)
	k.writes[string(key)] = cell{value: value, there: true}
	if k.indexed == nil {
		return nil
	}
	return k.indexed.Set(key, value, nil)
}

// Delete implements state.KV.
func (k *applyKV) Delete(key []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	k.writes[string(key)] = cell{}
	if k.indexed == nil {
		return nil
	}
	return k.indexed.Delete(key, nil)
}

func checkKey(key []byte) error {
	if len(key) == 0 || bytes.Compare(key, reserved) >= 0 {
		return fmt.Errorf("raftstore: key %x is not the state machine's to write", key)
	}
	return nil
}
