// Package record has every value that the state of a partition stores: its
// struct, and the codec between the struct and its bytes. It reads and writes
// no store, and decides nothing.
//
// Equal records are equal bytes on every replica, so the codecs are written by
// hand. A value is a version byte and its fields in order; docs/formats lists
// them. For example, a handler changes an Inode and calls Encode; the
// transaction puts the bytes under the inode's key. The next Get of that key
// gives the same bytes, and Decode gives the same Inode, or an error of kind
// Corrupt where a byte was lost, added or changed.
//
// A new field of a record needs three edits: the struct, its Encode and Decode,
// and a value in codec_test.go.
package record
