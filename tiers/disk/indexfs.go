package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine/internal/vfs"
)

// indexFS is the file system as pebble gets it. It keeps a bad device from
// harming more than itself: pebble panics where a directory cannot be synced,
// or where its own clean-up after a failed Open meets a compaction; it ends the
// process where its manifest cannot be written, and repeats a failed flush for
// ever.
//
// So it never hears of such errors. They take the device out of service, and the
// call that met one does not return: pebble stands still until the process ends
// (a device that failed is out of service for as long), no call of ours enters
// it any more, and it cannot touch what the next life of the device may make of
// its directory. The index is built again from the segments then.
type indexFS struct {
	vfs.FS
	d *Device
}

// guard passes on what pebble can deal with, and does not return from the rest.
func (x indexFS) guard(err error) error {
	switch {
	case x.d.Err() != nil:
		halt()
	case err == nil, err == io.EOF, errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist):
		return err
	case isNoSpace(err) && (x.d.ballast.drop(x.d) || x.d.opened.Load()):
		return err // it tries again
	}
	_ = x.d.indexError("disk.index", fmt.Errorf("%w: %w", pebble.ErrCorruption, err))
	halt()
	return nil
}

// halt never returns.
func halt() { select {} }

func (x indexFS) SyncDir(dir string) error { return x.guard(x.FS.SyncDir(dir)) }

// Lock does nothing: the device is locked, and the index with it.
func (indexFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (x indexFS) Open(name string, flag vfs.OpenFlag) (vfs.File, error) {
	if flag != vfs.Read && x.d.Err() != nil {
		halt()
	}
	f, err := x.FS.Open(name, flag)
	if err != nil {
		if flag == vfs.Read && x.d.opened.Load() {
			return nil, err
		}
		return nil, x.guard(err)
	}
	return indexFile{File: f, fs: x}, nil
}

func (x indexFS) MkdirAll(name string) error { return x.guard(x.FS.MkdirAll(name)) }

func (x indexFS) Rename(oldName, newName string) error {
	if x.d.Err() != nil {
		halt()
	}
	return x.guard(x.FS.Rename(oldName, newName))
}

func (x indexFS) Link(oldName, newName string) error {
	if x.d.Err() != nil {
		halt()
	}
	return x.guard(x.FS.Link(oldName, newName))
}

func (x indexFS) Remove(name string) error {
	if x.d.Err() != nil {
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
	if f.fs.d.Err() != nil {
		halt()
	}
	n, err := f.File.WriteAt(p, off)
	return n, f.fs.guard(err)
}

func (f indexFile) Sync() error { return f.fs.guard(f.File.Sync()) }

func (f indexFile) Truncate(size int64) error {
	if f.fs.d.Err() != nil {
		halt()
	}
	return f.fs.guard(f.File.Truncate(size))
}
