// Package state is the metadata of a Moraine cluster as a pure state machine: Apply(command) ->
// result over an ordered key-value store. It has no clock, no I/O of its own, no randomness and no
// goroutine. The proposer of a command supplies times, keys supply everything else, and IDs come
// from counters in the state. Every replica therefore computes the same bytes.
//
// This package admits a command and dispatches it. The handlers are functions of a transaction, in
// the packages below. Each package may use those listed before it:
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
//	session   sessions
//	work      leases and ends of jobs
//	check     the checker
//
// For one request, Batch.Apply opens a transaction and the session admits the request's number. The
// handler then reads and writes records, the usage counts are updated, and the batch merges the
// writes.
package state
