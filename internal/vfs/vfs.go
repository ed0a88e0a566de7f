// Package vfs is the file-system seam: Moraine writes everything on disk through
// FS. So a test can fail any call, or cut the power at any moment and see what a
// real disk would have kept.
//
// The rules are those of POSIX with a volatile cache. Bytes whose File.Sync has not
// returned may be lost, in any subset of their blocks. A created, renamed, linked
// or removed name is durable only after SyncDir of its directory.
//
// One path through it: Open makes a file, WriteAt writes it, Sync makes its bytes
// durable, and SyncDir its name. OS is the real file system, Mem the one whose
// power tests cut (mem.go), and Fault a wrapper that injects errors and delays
// (fault.go).
package vfs

import (
	"errors"
	"io"
)

// ErrLocked is the error of a lock that another process or caller holds.
var ErrLocked = errors.New("another process uses this directory: stop that one first")

// FS is a file system. Paths are cleaned absolute or relative paths with slashes.
// Methods return errors that satisfy errors.Is with fs.ErrNotExist and fs.ErrExist,
// and syscall.ENOSPC if the disk is full. All methods may be called concurrently.
type FS interface {
	// Open opens name. See OpenFlag.
	Open(name string, flag OpenFlag) (File, error)
	// Rename replaces newName atomically. Durable after SyncDir.
	Rename(oldName, newName string) error
	// Link makes a hard link.
	Link(oldName, newName string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes name and everything below it; a missing name is no error.
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
	// returned Closer is closed or the process ends. It does not wait: a lock that
	// is held is ErrLocked.
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
	// Direct requests O_DIRECT: buffers, offsets and lengths must then be multiples
	// of 4 KiB. If the file system does not have it, the file is opened without,
	// and File.Direct reports false.
	Direct
)

// File is an open file. ReadAt and WriteAt may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes the file's bytes and size durable (fdatasync). After an error, the
	// bytes written since the last success are in an unknown state. The file must
	// not be synced again, since the kernel reports such errors once.
	Sync() error
	// Truncate sets the size.
	Truncate(size int64) error
	// Allocate reserves space for [off, off+n), and grows the size to cover it.
	// Unwritten parts of the range read as zeros.
	Allocate(off, n int64) error
	// PunchHole frees the space of [off, off+n). The range then reads as zeros and
	// the size stays. off and n are multiples of 4 KiB.
	PunchHole(off, n int64) error
	// Size returns the current size.
	Size() (int64, error)
	// Direct reports whether the file bypasses the page cache.
	Direct() bool
	// Name returns the path with which it was opened.
	Name() string
	Close() error
}

// Info describes a file.
type Info struct {
	Size int64
	Dir  bool
	// Bytes is the allocated space, in bytes (less than Size if there are holes).
	Bytes int64
}

// Usage is the space of a file system, in bytes.
type Usage struct {
	Total, Free uint64
}
