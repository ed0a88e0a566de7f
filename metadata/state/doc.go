// Package state is the metadata of a Moraine cluster as a pure state machine:
// Apply(command) -> result over an ordered key-value store. It has no clock, no
// I/O of its own, no randomness and no goroutine: the proposer of a command
// brings times, the keys give everything else, and IDs come from counters in
// the state, so that every replica computes the same bytes.
//
// The package itself only admits a command and dispatches it. Its handlers are
// functions of a transaction in the packages below, each of which may use those
// before it:
//
//	record    stored structs and their codecs
//	kvtx      keys, views, transactions
//	tree      inodes, entries, scopes
//	jobs      records of jobs
//	usage     counts below directories, quotas
//	fleet     hosts, devices, stripes, repair
//	layout    extent tables of files
//	tier      objects
//	names     requests on names and attributes
//	content   requests on the content of files
//	ckpt      runs and checkpoints
//	session   sessions and exclusive leases
//	work      leases and ends of jobs
//	check     the checker
//
// A request goes this way: Batch.Apply opens a transaction, the session admits
// the request's number, the handler reads and writes records, the counts of
// usage follow, and the batch takes the writes over.
package state
