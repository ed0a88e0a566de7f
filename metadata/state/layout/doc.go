// Package layout is what a file has in which stripe or object: extent tables,
// references to them, and the counts that say when a stripe or an object is used
// by nothing. It changes tables in place, merges small ones, and releases what
// no table names any more.
//
// Overlay lays new extents over a file. The tables that it hits are edited or
// replaced; each stripe that loses its last use dies, and leaves a tombstone for
// each chunk. Content with many tables dies by a job, in pieces.
package layout
