package kvtx

import "github.com/morainefs/moraine"

// Touch is one item that clients may cache and that a command changed or an
// answer shows. It is a directory entry, or the attributes of an inode.
type Touch struct {
	// Lease is the inode whose cache lease covers the item. An entry, and a file in a directory,
	// are covered by the directory's lease. A directory, and a file that ever had two names, have
	// their own. It is 0 if no lease covers the item, as for a file without a name.
	Lease moraine.InodeID
	// Inode is the inode with the attributes. For an entry, it is the inode that gained or lost the
	// name; 0 in an answer that shows none.
	Inode moraine.InodeID
	// Name is the entry's name; empty for attributes.
	Name   string
	Change Change
}

// Change says what happened to the item of a Touch.
type Change uint8

const (
	// Changed: the attributes, or the content with its generation, changed.
	Changed Change = iota
	// Added: an entry was added.
	Added
	// Removed: an entry was removed, or, without a name, the inode itself.
	Removed
	// Delegated: the inode is a directory that was delegated to the session of the command. Every
	// other session drops all that the directory's lease covers.
	Delegated
)

// Seen lists the cacheable items that an answer shows. An answer must not show changes before other
// clients may learn of them.
type Seen struct {
	Touches []Touch
	// All says that the answer may show anything.
	All bool
	// Met are delegated directories that the read met. The answer must not be sent.
	Met []Met
}
