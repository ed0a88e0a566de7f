// Package kvtx is the store as command handlers see it: typed views, and the
// transaction of one command. It has no rules about files, devices or jobs, and does no I/O of
// its own.
//
// One log entry is a Batch over a KV, and each of its commands is a Tx. A handler reads through the
// Tx, which shows the handler's own writes, and calls Put, Insert and Del. If the command succeeds,
// Merge moves its writes into the batch. If it fails, the caller discards the Tx and nothing of it
// remains. Flush then writes each changed key once, together with the counters and the running sum.
// A View offers only the reads, over a Tx or a snapshot.
package kvtx

// Reader reads an ordered key-value store.
type Reader interface {
	// Get returns the value of key, or nil and false. The slice is valid until the next write; the
	// caller must not change it.
	Get(key []byte) ([]byte, bool, error)
	// Scan calls fn with each pair of lo <= key < hi in key order until fn returns false. The
	// slices are valid only during the call of fn. A nil hi means the end of the store.
	Scan(lo, hi []byte, fn func(key, value []byte) bool) error
}

// KV is a Reader that also writes and reads its own writes. All its writes become durable and
// visible to other readers together. Nobody changes a slice after Get returned it or Set received
// it.
type KV interface {
	Reader
	// Set copies key and keeps value.
	Set(key, value []byte) error
	Delete(key []byte) error
}

// Inserter is a KV with a separate method for keys that the store does not have. If such a key is
// deleted soon after, the KV need not write the deletion.
type Inserter interface {
	KV
	// Insert is Set for a key that is not in the store now. The key may have existed earlier and
	// been deleted.
	Insert(key, value []byte) error
}

// PrefixEnd returns the first key after all keys that begin with prefix, or nil if there is none.
func PrefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] != 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
