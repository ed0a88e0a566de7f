// Package statetest has what tests of the metadata state need. That is an
// ordered key-value store in memory, and wrappers of one that fail on purpose
// or watch which keys are used. It is not meant for a server.
package statetest

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
)

// Pair is a key and its value.
type Pair struct{ Key, Value []byte }

// blockKeys is how many keys a block has at most.
const blockKeys = 512

// KV is an ordered key-value store in memory. It is not safe for concurrent
// use.
type KV struct {
	// blocks hold all keys in order; none is empty.
	blocks [][]string
	values map[string][]byte
	// Gets, Sets, Deletes and Scans count the calls.
	Gets, Sets, Deletes, Scans int
	// changes counts the sets and deletes of each table, whatever its partition.
	changes [256]int
}

// NewKV returns an empty store.
func NewKV() *KV { return &KV{values: make(map[string][]byte)} }

// tableAt is the place of the table's number in a key, after the partition.
const tableAt = 2

// Changes returns how often keys of the table were set or deleted.
func (kv *KV) Changes(table byte) int { return kv.changes[table] }

func (kv *KV) countChange(key []byte) {
	if len(key) > tableAt {
		kv.changes[key[tableAt]]++
	}
}

// Len returns the number of pairs.
func (kv *KV) Len() int { return len(kv.values) }

// Get returns the value of key; the caller must not change it.
func (kv *KV) Get(key []byte) ([]byte, bool, error) {
	kv.Gets++
	v, ok := kv.values[string(key)]
	return v, ok, nil
}

// find returns the block that key is in, or would go to, and its place there.
func (kv *KV) find(key string) (block, at int) {
	block = sort.Search(len(kv.blocks), func(n int) bool { return kv.blocks[n][0] > key }) - 1
	if block < 0 {
		return 0, 0
	}
	return block, sort.SearchStrings(kv.blocks[block], key)
}

// Scan calls fn with each pair of lo <= key < hi in order, until it returns
// false. fn must not change the store.
func (kv *KV) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	kv.Scans++
	block, at := kv.find(string(lo))
	for ; block < len(kv.blocks); block, at = block+1, 0 {
		for _, k := range kv.blocks[block][at:] {
			if hi != nil && k >= string(hi) || !fn([]byte(k), kv.values[k]) {
				return nil
			}
		}
	}
	return nil
}

// Set copies the pair into the store.
func (kv *KV) Set(key, value []byte) error {
	kv.Sets++
	kv.countChange(key)
	if _, ok := kv.values[string(key)]; !ok {
		kv.insert(string(key))
	}
	kv.values[string(key)] = slices.Clone(value)
	return nil
}

func (kv *KV) insert(key string) {
	if len(kv.blocks) == 0 {
		kv.blocks = [][]string{{key}}
		return
	}
	b, at := kv.find(key)
	kv.blocks[b] = slices.Insert(kv.blocks[b], at, key)
	if keys := kv.blocks[b]; len(keys) > blockKeys {
		half := slices.Clone(keys[blockKeys/2:])
		kv.blocks[b] = keys[:blockKeys/2]
		kv.blocks = slices.Insert(kv.blocks, b+1, half)
	}
}

// Delete removes a pair. Removing an absent one is allowed.
func (kv *KV) Delete(key []byte) error {
	kv.Deletes++
	kv.countChange(key)
	if _, ok := kv.values[string(key)]; !ok {
		return nil
	}
	delete(kv.values, string(key))
	b, at := kv.find(string(key))
	kv.blocks[b] = slices.Delete(kv.blocks[b], at, at+1)
	if len(kv.blocks[b]) == 0 {
		kv.blocks = slices.Delete(kv.blocks, b, b+1)
	}
	return nil
}

// Clone returns a store of its own with the same pairs.
func (kv *KV) Clone() *KV {
	c := NewKV()
	for _, b := range kv.blocks {
		c.blocks = append(c.blocks, slices.Clone(b))
	}
	for k, v := range kv.values {
		c.values[k] = v // values are never changed in place
	}
	return c
}

// Pairs returns all pairs, in order.
func (kv *KV) Pairs() []Pair {
	out := make([]Pair, 0, len(kv.values))
	for _, b := range kv.blocks {
		for _, k := range b {
			out = append(out, Pair{[]byte(k), kv.values[k]})
		}
	}
	return out
}

// Diff describes the first difference of two stores; "" if there is none.
func Diff(a, b *KV) string {
	pa, pb := a.Pairs(), b.Pairs()
	for i := 0; i < len(pa) || i < len(pb); i++ {
		switch {
		case i == len(pa):
			return fmt.Sprintf("only the second has %x", pb[i].Key)
		case i == len(pb):
			return fmt.Sprintf("only the first has %x", pa[i].Key)
		case !bytes.Equal(pa[i].Key, pb[i].Key):
			return fmt.Sprintf("key %d is %x and %x", i, pa[i].Key, pb[i].Key)
		case !bytes.Equal(pa[i].Value, pb[i].Value):
			return fmt.Sprintf("key %x is %x and %x", pa[i].Key, pa[i].Value, pb[i].Value)
		}
	}
	return ""
}

// Fenced is a KV that only lets keys with a prefix through: every other access
// is an error. It shows that a state machine stays within its partition.
type Fenced struct {
	*KV
	Prefix []byte
}

func (f *Fenced) check(key []byte) error {
	if !bytes.HasPrefix(key, f.Prefix) {
		return fmt.Errorf("key %x is outside %x", key, f.Prefix)
	}
	return nil
}

// Get is KV.Get of a key with the prefix.
func (f *Fenced) Get(key []byte) ([]byte, bool, error) {
	if err := f.check(key); err != nil {
		return nil, false, err
	}
	return f.KV.Get(key)
}

// Scan is KV.Scan of a range whose keys all have the prefix.
func (f *Fenced) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	if err := f.check(lo); err != nil {
		return err
	}
	end := slices.Clone(f.Prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			end = end[:i+1]
			break
		}
	}
	if hi == nil || bytes.Compare(hi, end) > 0 {
		return fmt.Errorf("range %x to %x leaves %x", lo, hi, f.Prefix)
	}
	return f.KV.Scan(lo, hi, fn)
}

// Set is KV.Set of a key with the prefix.
func (f *Fenced) Set(key, value []byte) error {
	if err := f.check(key); err != nil {
		return err
	}
	return f.KV.Set(key, value)
}

// Delete is KV.Delete of a key with the prefix.
func (f *Fenced) Delete(key []byte) error {
	if err := f.check(key); err != nil {
		return err
	}
	return f.KV.Delete(key)
}
