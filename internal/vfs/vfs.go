// Package vfs is the file-system seam: everything that Moraine keeps on disk is
// written through FS, so that a test can fail any call, and can cut the power
// at any instant and see what a real disk would have kept.
//
// The rules are those of POSIX with a volatile cache: what File.Sync has not
// returned for may be lost, in any subset of its blocks; a created, renamed,
// linked or removed name is durable only after SyncDir of its directory.
//
// OS is the real one, Mem the one that tests cut (mem.go), Fault a wrapper that
// injects errors and delays (fault.go).
package vfs

import (
	"errors"
	"io"
)

// ErrLocked is the error of a lock that is held elsewhere.
var ErrLocked = errors.New("another process uses this directory: end that one first")

// FS is a file system. Paths are cleaned absolute or relative paths with
// slashes. Methods return errors that satisfy errors.Is with fs.ErrNotExist and
// fs.ErrExist, and syscall.ENOSPC where the disk is full. All methods may be
// called concurrently.
type FS interface {
	// Open opens name. See OpenFlag.
	Open(name string, flag OpenFlag) (File, error)
	// Rename replaces newName atomically. Durable after SyncDir.
	Rename(oldName, newName string) error
	// Link makes a hard link.
	Link(oldName, newName string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes name and what is below it; a missing name is no error.
	RemoveAll(name string) error
	// MkdirAll makes a directory and its missing parents.
	MkdirAll(name string) error
	// List returns the names in a directory, sorted.
	List(dir string) ([]string, error)
	// Stat describes a file or directory.
	Stat(name string) (Info, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on name, creating it, until the
	// returned Closer is closed or the process ends. It does not wait: a lock
	// held elsewhere is ErrLocked.
	Lock(name string) (io.Closer, error)
	// Usage reports the space of the file system that holds path.
	Usage(path string) (Usage, error)
}

// OpenFlag says how to open a file.
type OpenFlag int

const (
	// Read opens an existing file for reading only. It is the zero flag.
	Read OpenFlag = 0
	// Write opens an existing file for reading and writing.
	Write OpenFlag = 1 << iota
	// Create makes the file if it does not exist. Implies Write.
	Create
	// Exclusive, with Create, fails with fs.ErrExist if the file exists.
	Exclusive
	// Truncate empties the file. Implies Write.
	Truncate
	// Direct asks for O_DIRECT: buffers, offsets and lengths must then be
	// multiples of 4 KiB. Where the file system does not have it the file is
	// opened without, and File.Direct reports false.
	Direct
)

// File is an open file. ReadAt and WriteAt may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes the file's bytes and size durable (fdatasync). After an error
	// nothing may be assumed of the bytes written since the last success, and
	// the file must not be synced again (errors are reported once).
	Sync() error
	// Truncate sets the size.
	Truncate(size int64) error
	// Allocate reserves space for [off, off+n), growing the size to cover it.
	// The range reads as zeros where nothing was written.
	Allocate(off, n int64) error
	// PunchHole gives the space of [off, off+n) back; the range then reads as
	// zeros and the size stays. off and n are multiples of 4 KiB.
	PunchHole(off, n int64) error
	// Size returns the present size.
	Size() (int64, error)
	// Direct reports whether the file bypasses the page cache.
	Direct() bool
	// Name returns the path that it was opened by.
	Name() string
	Close() error
}

// Info describes a file.
type Info struct {
	Size int64
	Dir  bool
	// Bytes is the space allocated, in bytes (less than Size where there are holes).
	Bytes int64
}

// Usage is the space of a file system, in bytes.
type Usage struct {
	Total, Free uint64
}
