package raftstore

import (
	"hash/maphash"
	"math/bits"
)

// filter is a Bloom filter of the keys of one table: what it does not have is not
// there. Keys that were deleted stay in it.
type filter struct {
	seed maphash.Seed
	bits []uint64
	// room is how many more keys it takes before it says yes too often.
	room int
}

const (
	// filterBits is how many bits there are for each key, filterProbes how many of
	// them a key sets: together about 1 in 100 keys that are not there are searched for.
	filterBits, filterProbes = 10, 4
	// leastFilter is how many keys the smallest filter has room for.
	leastFilter = 256
)

// newFilter returns a filter for as many keys again as there are.
func newFilter(keys int) *filter {
	room := max(2*keys, leastFilter)
	words := 1 << bits.Len(uint(room*filterBits/64))
	return &filter{seed: maphash.MakeSeed(), bits: make([]uint64, words), room: room}
}

// probe calls fn with the places of a key until it returns false.
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

// size is what it takes, in bytes.
func (f *filter) size() int {
	if f == nil {
		return 0
	}
	return 8 * len(f.bits)
}
