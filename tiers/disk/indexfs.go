package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine/internal/vfs"
)

// indexFS is the file system that pebble uses. It limits the harm of a bad device
// to that device. Pebble panics if it cannot sync a directory, or if its own
// clean-up after a failed Open meets a compaction. It ends the process if it cannot
// write its manifest, and it repeats a failed flush for ever.
//
// indexFS therefore hides such errors from pebble. The error takes the device out
// of service, and the call that met it does not return. Pebble halts until the
// process ends, and the failed device is out of service for as long. No call of
// ours enters pebble after that, and pebble cannot touch the directory when it is
// used again later. The next Open rebuilds the index from the segments.
type indexFS struct {
	vfs.FS
	index *index
}

// guard returns errors that pebble can handle, and does not return from others.
func (x indexFS) guard(err error) error {
	switch {
	case x.index.failure.err() != nil:
		halt()
	case err == nil, err == io.EOF, errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist):
		return err
	case isNoSpace(err) && (x.index.ballast.drop() || x.index.opened.Load()):
		return err // pebble retries
	}
	_ = x.index.fail("disk.index", fmt.Errorf("%w: %w", pebble.ErrCorruption, err))
	halt()
	return nil
}

// halt never returns.
func halt() { select {} }

func (x indexFS) SyncDir(dir string) error { return x.guard(x.FS.SyncDir(dir)) }

// Lock does nothing: the lock of the device covers the index.
func (indexFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (x indexFS) Open(name string, flag vfs.OpenFlag) (vfs.File, error) {
	if flag != vfs.Read && x.index.failure.err() != nil {
		halt()
	}
	f, err := x.FS.Open(name, flag)
	if err != nil {
		if flag == vfs.Read && x.index.opened.Load() {
			return nil, err
		}
		return nil, x.guard(err)
	}
	return indexFile{File: f, fs: x}, nil
}

func (x indexFS) MkdirAll(name string) error { return x.guard(x.FS.MkdirAll(name)) }

func (x indexFS) Rename(oldName, newName string) error {
	if x.index.failure.err() != nil {
		halt()
	}
	return x.guard(x.FS.Rename(oldName, newName))
}

func (x indexFS) Link(oldName, newName string) error {
	if x.index.failure.err() != nil {
		halt()
	}
	return x.guard(x.FS.Link(oldName, newName))
}

func (x indexFS) Remove(name string) error {
	if x.index.failure.err() != nil {
		halt()
	}
	return x.guard(x.FS.Remove(name))
}

// indexFile is a file that pebble writes.
type indexFile struct {
	vfs.File
	fs indexFS
}

func (f indexFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.index.failure.err() != nil {
		halt()
	}
	n, err := f.File.WriteAt(p, off)
	return n, f.fs.guard(err)
}

func (f indexFile) Sync() error { return f.fs.guard(f.File.Sync()) }

func (f indexFile) Truncate(size int64) error {
	if f.fs.index.failure.err() != nil {
		halt()
	}
	return f.fs.guard(f.File.Truncate(size))
}
