package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// reserved is the first key that belongs to this package and not to the state machine. State keys
// begin with a partition number, so that partition 65535 does not exist.
var reserved = []byte{0xff, 0xff}

// pebbleReader is the common part of a DB, a snapshot and an indexed batch.
type pebbleReader interface {
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

// scan implements kvtx.Reader.Scan over r.
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
		stored, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		value, _, err := openValue(it.Key(), stored)
		if err != nil {
			return err
		}
		if !fn(it.Key(), value) {
			return nil
		}
	}
	return it.Error()
}

// scanOver is scan with the layers above r: keys are those of lo <= key < hi that look may have, in
// any order.
func scanOver(r pebbleReader, lo, hi []byte, keys []string, look func(key string) (cell, bool), fn func(key, value []byte) bool) error {
	if len(keys) == 0 {
		return scan(r, lo, hi, fn)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	var buf []byte
	var damage error
	// tell calls fn with a pair from look, and reports whether to continue.
	tell := func(key []byte, c cell) bool {
		if damage = c.check(key); damage != nil {
			return false
		}
		return !c.there || fn(key, c.value)
	}
	// show calls fn with the first key, and reports whether to continue.
	show := func() bool {
		c, ok := look(keys[0])
		buf = append(buf[:0], keys[0]...)
		keys = keys[1:]
		return !ok || tell(buf, c)
	}
	more := true
	err := scan(r, lo, hi, func(key, value []byte) bool {
		for more && len(keys) > 0 && keys[0] < string(key) {
			more = show()
		}
		if !more {
			return false
		}
		if len(keys) > 0 && keys[0] == string(key) {
			if c, ok := look(keys[0]); ok {
				keys = keys[1:]
				more = tell(key, c)
				return more
			}
			keys = keys[1:]
		}
		more = fn(key, value)
		return more
	})
	for err == nil && more && len(keys) > 0 {
		more = show()
	}
	if err == nil {
		err = damage
	}
	return err
}

// bounds converts lo and hi for layers.
func bounds(lo, hi []byte) (string, string) {
	if hi == nil {
		return string(lo), string(reserved)
	}
	return string(lo), string(hi)
}

// applyKV is the state while one batch of entries is applied. It has three levels: the database,
// then commits that are not in it yet, then the batch's own writes. Point reads look first in maps
// of the last two. They look next in the records, then in what is known not to exist, and last in
// the database, which is expensive.
type applyKV struct {
	db      *pebble.DB
	layers  *layers
	records *records
	ends    *ends
	at      uint64 // last committed entry
	writes  map[string]cell
	order   []string // keys of writes, in order; nil after a new key was written
}

// cell is a commit's write to a key.
type cell struct {
	value []byte
	sum   uint32 // checksum of key and value, if it has a value
	there bool   // false if the key was deleted
	fresh bool   // the database does not have the key, so its deletion need not be written
}

// check compares the value with its checksum.
func (c cell) check(key []byte) error {
	if !c.there {
		return nil
	}
	return checkValue(key, c.value, c.sum)
}

var _ kvtx.KV = (*applyKV)(nil)
var _ kvtx.Inserter = (*applyKV)(nil)

// newApplyKV starts a batch on the present state. Nobody else may be writing, and the previous
// batch must have ended, committed or not.
func (s *stateDB) newApplyKV() *applyKV {
	if len(s.writes) > maxLayerKeys {
		s.writes = nil // clearing a large map takes as long as filling it
	}
	if s.writes == nil {
		s.writes = map[string]cell{}
	}
	clear(s.writes)
	return &applyKV{db: s.db, layers: s.layers, records: s.records, ends: s.ends, at: s.reached, writes: s.writes}
}

// Get implements kvtx.Reader. Nobody changes the slice.
func (k *applyKV) Get(key []byte) ([]byte, bool, error) {
	if c, ok := k.look(string(key)); ok {
		return c.value, c.there, c.check(key)
	}
	if value, ok, err := k.records.get(key, k.at); ok || err != nil {
		return value, ok, err
	}
	if k.ends.absent(key) {
		return nil, false, nil
	}
	value, sum, ok, err := readValue(k.db, key)
	switch {
	case err != nil:
		return nil, false, err
	case !ok:
		return nil, false, k.missed(key)
	}
	k.records.add(key, value, sum, k.at)
	return value, true, nil
}

// look returns the value above the database for key; false if there is none.
func (k *applyKV) look(key string) (cell, bool) {
	if c, ok := k.writes[key]; ok {
		return c, true
	}
	return k.layers.top(key)
}

// Scan implements kvtx.Reader.
func (k *applyKV) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return scanOver(k.db, lo, hi, k.above(bounds(lo, hi)), k.look, fn)
}

// above returns the keys of lo <= key < hi that may differ from the database.
func (k *applyKV) above(lo, hi string) []string {
	if k.order == nil && len(k.writes) > 0 {
		k.order = make([]string, 0, len(k.writes))
		for key := range k.writes {
			k.order = append(k.order, key)
		}
		slices.Sort(k.order)
	}
	return k.layers.allKeysIn(slices.Clone(within(k.order, lo, hi)), lo, hi)
}

// Set implements kvtx.KV.
func (k *applyKV) Set(key, value []byte) error { return k.write(key, cell{value: value, there: true}) }

// Insert implements kvtx.Inserter.
func (k *applyKV) Insert(key, value []byte) error {
	return k.write(key, cell{value: value, there: true, fresh: true})
}

// Delete implements kvtx.KV.
func (k *applyKV) Delete(key []byte) error { return k.write(key, cell{}) }

func (k *applyKV) write(key []byte, c cell) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if c.there {
		c.sum = valueSum(key, c.value)
		k.ends.wrote(key)
	}
	before, ok := k.writes[string(key)]
	if ok {
		c.fresh = before.fresh // the database's value has not changed
	} else {
		k.order = nil
	}
	k.writes[string(key)] = c
	return nil
}

func checkKey(key []byte) error {
	if len(key) == 0 || bytes.Compare(key, reserved) >= 0 {
		return fmt.Errorf("raftstore: the state machine may not write key %x", key)
	}
	return nil
}
