// Package record has every value in the state of a partition: its struct, and the codec between the
// struct and its bytes. It accesses no store and makes no decisions.
//
// Equal records must be equal bytes on every replica, so the codecs are written by hand. A value is
// a version byte and its fields in order; docs/formats lists them. For example, a handler changes
// an Inode and calls Encode, and the transaction stores the bytes under the inode's key. The next
// Get of that key returns the same bytes. Decode then returns the same Inode, or an error of kind
// Corrupt if a byte was lost, added or changed.
//
// A new field of a record needs three edits: the struct, its Encode and Decode, and a value in
// codec_test.go.
package record
