package raftstore

import (
	"bytes"
	"errors"
	"fmt"
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
// what the batch has written, then from the records, then from the ends of
// tables, then from the database, which is what costs. The batch gets an index, which scans need to merge, when
// the first scan comes: creates and commits make none.
type applyKV struct {
	db      *pebble.DB
	records *records
	ends    *ends
	at      uint64 // index that db has reached
	batch   *pebble.Batch
	indexed bool
	writes  map[string]cell
}

// cell is what a batch wrote to a key; there is false where it deleted it.
type cell struct {
	value []byte
	there bool
}

var _ state.KV = (*applyKV)(nil)

// newApplyKV begins a batch on the state as it is; nobody else may be writing.
func (s *stateDB) newApplyKV() *applyKV {
	return &applyKV{db: s.db, records: s.records, ends: s.ends, at: s.records.begun.Load(), batch: s.db.NewBatch(), writes: map[string]cell{}}
}

// Get implements state.Reader. The slice is never changed.
func (k *applyKV) Get(key []byte) ([]byte, bool, error) {
	if c, ok := k.writes[string(key)]; ok {
		return c.value, c.there, nil
	}
	if value, ok := k.records.get(key, k.at); ok {
		return value, true, nil
	}
	if k.ends.passed(key) {
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

// Scan implements state.Reader.
func (k *applyKV) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	if k.batch.Empty() {
		return scan(k.db, lo, hi, fn)
	}
	if err := k.index(); err != nil {
		return err
	}
	return scan(k.batch, lo, hi, fn)
}

// index gives the batch an index.
func (k *applyKV) index() error {
	if k.indexed {
		return nil
	}
	plain := k.batch
	k.batch, k.indexed = k.db.NewIndexedBatch(), true
	return errors.Join(k.batch.Apply(plain, nil), plain.Close())
}

// close frees the batch, committed or not.
func (k *applyKV) close() error { return k.batch.Close() }

// Set implements state.KV.
func (k *applyKV) Set(key, value []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	k.ends.wrote(key)
	k.writes[string(key)] = cell{value: slices.Clip(append([]byte{}, value...)), there: true}
	return k.batch.Set(key, value, nil)
}

// Delete implements state.KV.
func (k *applyKV) Delete(key []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	k.writes[string(key)] = cell{}
	return k.batch.Delete(key, nil)
}

func checkKey(key []byte) error {
	if len(key) == 0 || bytes.Compare(key, reserved) >= 0 {
		return fmt.Errorf("raftstore: key %x is not the state machine's to write", key)
	}
	return nil
}
