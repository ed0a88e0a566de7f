// Package fileproto has the messages of package agentproto that are about files.
//
// One path through it: Create brings the descriptor of a slot -> the peer fills it -> Append writes
// it, as often as needed -> Commit gives the file its name. FetchFile reads. Mkdir, Rename, Clone and
// Remove change names.
package fileproto

import "github.com/morainefs/moraine/internal/jsonname"

// Name is a name or path of any bytes. In JSON, a byte that is not part of valid UTF-8 is the escape
// of the lone surrogate U+DC00 plus the byte, as in Python's surrogateescape.
type Name string

// MarshalJSON implements json.Marshaler.
func (n Name) MarshalJSON() ([]byte, error) { return jsonname.Name(n).MarshalJSON() }

// UnmarshalJSON implements json.Unmarshaler.
func (n *Name) UnmarshalJSON(b []byte) error { return (*jsonname.Name)(n).UnmarshalJSON(b) }

// Stat describes a file or directory; it follows links.
type Stat struct {
	Path Name `json:"path"`
}

// Entry describes a file, a directory or a link.
type Entry struct {
	Name Name `json:"name"`
	// Type is file, directory, link or other.
	Type  string `json:"type"`
	Bytes int64  `json:"bytes"`
	// Modified is the time of the last change, in nanoseconds since 1970.
	Modified int64 `json:"modified_ns"`
	// Version is another string after each change of a file.
	Version string `json:"version"`
}

// Types of entries.
const (
	File      = "file"
	Directory = "directory"
	Link      = "link"
	Other     = "other" // a fifo, socket or device node: it has no content
)

// List lists a directory by name, one page at a time.
type List struct {
	Path Name `json:"path"`
	// After is the last name of the page before; empty for the first.
	After Name `json:"after,omitempty"`
	// Limit bounds the page. 0: 1000.
	Limit int `json:"limit,omitempty"`
}

// ListReply is a page; an empty one is the end.
type ListReply struct {
	Entries []Entry `json:"entries"`
}

// FetchFile reads a range of a file into a slot. While a connection reads one file, all ranges are
// of the same version.
type FetchFile struct {
	Path   Name  `json:"path"`
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
	// Reuse says that the trainer has read the bytes of the last FetchFile: the slot may be used
	// again.
	Reuse bool `json:"reuse,omitempty"`
}

// FetchFileReply comes with the descriptor of the slot, which can only be read. Its memory counts
// until the next fetch or begin of the connection, or its end.
type FetchFileReply struct {
	Slot string `json:"slot"`
	// Bytes is how many bytes there are: fewer than requested only at the end of the file.
	Bytes int64 `json:"bytes"`
	// Size is the length of the file, of this version.
	Size    int64  `json:"size"`
	Version string `json:"version"`
}

// Create begins a file that nobody sees before Commit. It ends one that the connection has begun.
type Create struct {
	Path Name `json:"path"`
	// Bytes is the length of the slot through which the file is written.
	Bytes int64 `json:"bytes"`
	// Exclusive fails with Exists where the name is taken at the commit. Otherwise a file of that
	// name is replaced.
	Exclusive bool `json:"exclusive,omitempty"`
	// Parents makes the directories that are missing.
	Parents bool `json:"parents,omitempty"`
}

// CreateReply comes with the descriptor of the slot.
type CreateReply struct {
	Slot  string `json:"slot"`
	Bytes int64  `json:"bytes"`
}

// Append writes the first Bytes bytes of the slot behind what the file has. After its reply the
// slot may be filled again.
type Append struct {
	Bytes int64 `json:"bytes"`
}

// AppendReply says how many bytes the file has.
type AppendReply struct {
	Bytes int64 `json:"bytes"`
}

// Commit gives the file its name, whole. From its reply on the file is at level nvme.
type Commit struct{}

// Mkdir makes a directory.
type Mkdir struct {
	Path Name `json:"path"`
	// Parents makes the directories above it that are missing.
	Parents bool `json:"parents,omitempty"`
	// Exclusive fails with Exists where the name is taken. Otherwise a directory of that name is no
	// error.
	Exclusive bool `json:"exclusive,omitempty"`
}

// Remove removes a file, a link or an empty directory.
type Remove struct {
	Path Name `json:"path"`
	// Tree removes a directory with all that is below it. It fails with Immutable where that has
	// committed steps.
	Tree bool `json:"tree,omitempty"`
}

// RemoveReply says that the name is gone.
type RemoveReply struct{}

// Rename gives an entry another name, at once. A file replaces a file, and a directory an empty
// one.
type Rename struct {
	From Name `json:"from"`
	To   Name `json:"to"`
	// Exclusive fails with Exists where the new name is taken.
	Exclusive bool `json:"exclusive,omitempty"`
}

// RenameReply says that the entry has the new name.
type RenameReply struct{}

// Clone makes a file that shares the bytes of another one: none moves. It fails with CrossTenant
// where the two would belong to different tenants.
type Clone struct {
	From Name `json:"from"`
	To   Name `json:"to"`
	// Exclusive fails with Exists where the new name is taken. Otherwise a file of that name is
	// replaced.
	Exclusive bool `json:"exclusive,omitempty"`
	// Parents makes the directories that are missing.
	Parents bool `json:"parents,omitempty"`
}
