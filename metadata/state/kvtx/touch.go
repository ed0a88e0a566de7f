package kvtx

import "github.com/morainefs/moraine"

// Touch is one thing that a command changed, or an answer shows, of what clients
// may cache: an entry of a directory, or the attributes of an inode.
type Touch struct {
	// Lease is the inode whose lease covers it: the directory of an entry, and of
	// a file in it; a directory, or a file that ever had two names, itself; 0
	// where nothing does, as with a file without a name.
	Lease moraine.InodeID
	// Inode has the attributes; of an entry, it is what got or lost the name, 0
	// in an answer that shows none.
	Inode moraine.InodeID
	// Name is that of the entry; empty for attributes.
	Name   string
	Change Change
}

// Change is what happened to what a Touch names.
type Change uint8

const (
	// Changed: attributes, or the content with its generation.
	Changed Change = iota
	// Added: an entry.
	Added
	// Removed: an entry, or, without a name, the inode itself.
	Removed
	// Taken: nothing changed, but a session got the exclusive lease on the directory.
	Taken
)

// Seen is what an answer shows of what may be cached. Changes that others may
// not know of yet must not show in it.
type Seen struct {
	Touches []Touch
	// Missing are inodes that were asked for and are not there.
	Missing []moraine.InodeID
	// All says that the answer may show anything.
	All bool
}
