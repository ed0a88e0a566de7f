// Package kvtx is the store as the handlers of commands see it: the keys of a
// partition, typed views of it, and the transaction of one command. It holds no
// rule about files, devices or jobs, and does no I/O of its own.
//
// A log entry is a Batch over a KV, and each of its commands a Tx. A handler
// reads through the Tx, which shows its own writes, and calls Put, Insert and
// Del. When the command succeeds, Merge takes its writes over into the batch;
// when it fails, the Tx is thrown away and nothing is left of it. Flush then
// writes each changed key once, with the counters and the running sum. A View
// is the same for reads alone, over a Tx or a snapshot.
package kvtx

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
