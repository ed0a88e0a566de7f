// Package state is the metadata of a Moraine cluster as a pure state machine:
// Apply(command) -> result over an ordered key-value store. It has no clock, no
// I/O of its own, no randomness and no goroutine: the proposer of a command
// brings times, the keys give everything else, and IDs come from counters in
// the state, so that every replica computes the same bytes.
package state

// Reader is an ordered key-value store, read.
type Reader interface {
	// Get returns the value of key, or nil and false. The slice is valid until
	// the next call that writes, and must not be changed.
	Get(key []byte) ([]byte, bool, error)
	// Scan calls fn with each pair of lo <= key < hi, in order of key, until it
	// returns false. The slices are valid during the call of fn only. hi nil
	// means: to the end.
	Scan(lo, hi []byte, fn func(key, value []byte) bool) error
}

// KV is a Reader that also writes; it reads its own writes. What it wrote
// becomes durable and visible to other readers as one. A value that Get returned,
// or that was given to Set, stays as it is: nobody changes it any more.
type KV interface {
	Reader
	// Set copies key and keeps value.
	Set(key, value []byte) error
	Delete(key []byte) error
}

// Inserter is a KV that is told of keys which the store did not have, so that it need not
// write their deletion where they go soon after.
type Inserter interface {
	KV
	// Insert is Set of a key that is not there. It may have been, and have been deleted.
	Insert(key, value []byte) error
}
