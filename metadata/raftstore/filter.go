package raftstore

import (
	"hash/maphash"
	"math/bits"
)

// filter is a Bloom filter of the keys of one table: a key that is not in the filter does not
// exist. Deleted keys stay in it.
type filter struct {
	seed maphash.Seed
	bits []uint64
	// room is how many more keys fit before false positives become too frequent.
	room int
}

const (
	// filterBits is the number of bits per key, filterProbes how many of them a key sets. Together
	// about 1 in 100 absent keys is searched for.
	filterBits, filterProbes = 10, 4
	// leastFilter is the capacity of the smallest filter, in keys.
	leastFilter = 256
)

// newFilter returns a filter with room for twice keys.
func newFilter(keys int) *filter {
	room := max(2*keys, leastFilter)
	words := 1 << bits.Len(uint(room*filterBits/64))
	return &filter{seed: maphash.MakeSeed(), bits: make([]uint64, words), room: room}
}

// probe calls fn with the bit positions of a key until fn returns false.
func (f *filter) probe(key []byte, fn func(word int, bit uint64) bool) {
	h := maphash.Bytes(f.seed, key)
	step := h>>32 | 1
	for range filterProbes {
		if !fn(int(h/64)&(len(f.bits)-1), 1<<(h%64)) {
			return
		}
		h += step
	}
}

func (f *filter) add(key []byte) {
	f.room--
	f.probe(key, func(word int, bit uint64) bool {
		f.bits[word] |= bit
		return true
	})
}

// has reports whether key may have been added.
func (f *filter) has(key []byte) bool {
	there := true
	f.probe(key, func(word int, bit uint64) bool {
		there = f.bits[word]&bit != 0
		return there
	})
	return there
}

// size returns its memory in bytes.
func (f *filter) size() int {
	if f == nil {
		return 0
	}
	return 8 * len(f.bits)
}
