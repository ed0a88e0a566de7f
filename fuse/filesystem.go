package fuse

import gofuse "github.com/hanwen/go-fuse/v2/fuse"

// fileSystem answers the kernel's requests. Requests about open files and directories go to the
// parts that have these; it answers the others itself.
type fileSystem struct {
	unimplemented
	*calls
	*openFiles
	*directories
}

// unimplemented answers all other requests with ENOSYS. Its methods are one level deeper than those
// of the parts, so that theirs count.
type unimplemented struct{ gofuse.RawFileSystem }

// String implements gofuse.RawFileSystem.
func (fs *fileSystem) String() string { return fsType }
