// Package moraine is the vocabulary that every other package uses: identifiers, sizes, schemes,
// levels and errors. Moraine is a tiered store for the checkpoints and datasets of AI training
// clusters.
//
// It does no I/O, starts no goroutine and imports only the standard library. Everything in it
// is a plain value, safe to copy and to share.
package moraine

// Sizes that formats and protocols depend on. They are constants, never settings: nothing that
// changes bytes on disk is configurable.
const (
	// BlockSize is the unit of checksumming and of alignment on disk, in bytes.
	BlockSize = 4 << 10
	// DefaultChunkSize is how many bytes of a file one data chunk has unless the policy says
	// otherwise.
	DefaultChunkSize = 4 << 20
	// MaxChunkSize bounds a chunk, and so every buffer for one, in bytes.
	MaxChunkSize = 16 << 20
	// SmallRemainder is the largest end of a file that is stored as copies (x(m+1)) rather than
	// as an erasure-coded stripe, in bytes.
	SmallRemainder = 512 << 10
	// MaxFileSize is the largest size of a file, in bytes.
	MaxFileSize = 1 << 60
	// MaxInline is the largest content of a file that the metadata keeps itself, in bytes.
	MaxInline = 16 << 10
	// MaxTableExtents is the greatest number of extents in one extent table.
	MaxTableExtents = 256
	// MaxCommitStripes, MaxCommitChunks and MaxCommitExtents bound one commit of content: its new
	// stripes, all their chunks, and its extents. Clients split larger commits; each piece takes
	// effect whole.
	MaxCommitStripes = 256
	MaxCommitChunks  = 1024
	MaxCommitExtents = 256
	// MaxNameLen is the longest name of a directory entry, in bytes.
	MaxNameLen = 255
	// MaxSymlinkLen is the longest target of a symbolic link, in bytes.
	MaxSymlinkLen = 4095
)

// Directories that the system makes, each where it is needed. A file or link of such a name is like
// any other.
const (
	// UploadsDir is the directory of a bucket in which the S3 endpoint keeps the parts of
	// incomplete uploads. They are no files yet.
	UploadsDir = ".moraine.uploads"
	// SnapshotsDir has the snapshots of the directory above it.
	SnapshotsDir = ".snapshots"
	// TrashDir has what was removed below the directory above it, if a policy there keeps that.
	TrashDir = ".trash"
)

// IsReserved reports whether directories of a name are the system's. A clone, flush or stage of a tree
// does not go into them, and what is removed there does not go to the trash.
func IsReserved(name string) bool { return IsHidden(name) || name == UploadsDir }

// IsHidden reports whether listings of a mount and of the S3 endpoint omit directories of a name.
// Who names one gets it.
func IsHidden(name string) bool { return name == SnapshotsDir || name == TrashDir }

// Extended attributes that are access control lists.
const (
	// AccessACL has the list that decides who may use an inode. An inode whose list says no more than
	// its mode has no such attribute.
	AccessACL = "system.posix_acl_access"
	// DefaultACL is that of a directory, with the list that new entries inherit.
	DefaultACL = "system.posix_acl_default"
)

// IsACL reports whether an extended attribute is an access control list.
func IsACL(name string) bool { return name == AccessACL || name == DefaultACL }
