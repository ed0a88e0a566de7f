// Package pebblevfs lets pebble keep its files on a vfs.FS, so that a test that
// fails a call or cuts the power covers pebble too.
//
// The file system below decides what is durable, and when. On vfs.OS the adapter
// uses pebble's own file system, which makes the same calls and handles descriptors
// better (sync_file_range, readahead). It adds two things: see ordered for both,
// and private for the files that pebble's own file system makes. One path through
// it: New wraps a vfs.FS, and pebble opens its database with the result.
package pebblevfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/morainefs/moraine/internal/vfs"
)

// New returns fsys in pebble's file-system interface.
func New(fsys vfs.FS) pvfs.FS {
	if _, ok := fsys.(vfs.OS); ok {
		return ordered{private{pvfs.Default}}
	}
	return ordered{adapter{fs: fsys}}
}

// ordered makes the names in a directory durable before a marker file is made in
// it. A marker is an empty file whose name says which manifest, or which format, is
// current. pebble v2.1.7 makes a manifest and then its marker, and syncs the
// directory once, after both. A file system that keeps the second name and loses
// the first would leave a database that does not open. Journals keep the order;
// POSIX does not require it. This costs one sync a manifest.
type ordered struct{ pvfs.FS }

// Create implements pvfs.FS.
func (o ordered) Create(name string, category pvfs.DiskWriteCategory) (pvfs.File, error) {
	if strings.HasPrefix(o.PathBase(name), "marker.") {
		if err := o.syncDir(o.PathDir(name)); err != nil {
			return nil, err
		}
	}
	return o.FS.Create(name, category)
}

func (o ordered) syncDir(name string) error {
	d, err := o.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Unwrap implements pvfs.FS.
func (o ordered) Unwrap() pvfs.FS { return o.FS }

type adapter struct{ fs vfs.FS }

// Create makes a new file under name, even if a file of that name is open. Files
// may be hard links into a checkpoint, and must not be emptied in place.
func (a adapter) Create(name string, _ pvfs.DiskWriteCategory) (pvfs.File, error) {
	for {
		f, err := a.fs.Open(name, vfs.Create|vfs.Exclusive)
		if err == nil {
			return &file{f: f}, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := a.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

func (a adapter) Open(name string, opts ...pvfs.OpenOption) (pvfs.File, error) {
	if info, err := a.fs.Stat(name); err == nil && info.Dir {
		return a.OpenDir(name)
	}
	return a.open(name, vfs.Read, opts)
}

func (a adapter) OpenReadWrite(name string, _ pvfs.DiskWriteCategory, opts ...pvfs.OpenOption) (pvfs.File, error) {
	return a.open(name, vfs.Create, opts)
}

func (a adapter) open(name string, flag vfs.OpenFlag, opts []pvfs.OpenOption) (pvfs.File, error) {
	f, err := a.fs.Open(name, flag)
	if err != nil {
		return nil, err
	}
	out := &file{f: f}
	for _, opt := range opts {
		opt.Apply(out)
	}
	return out, nil
}

func (a adapter) OpenDir(name string) (pvfs.File, error) {
	info, err := a.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	return &dir{fs: a.fs, name: name, info: info}, nil
}

// ReuseForWrite keeps the old contents under the new name: pebble overwrites a
// recycled log, whose records carry their log's number.
func (a adapter) ReuseForWrite(oldName, newName string, _ pvfs.DiskWriteCategory) (pvfs.File, error) {
	if err := a.fs.Rename(oldName, newName); err != nil {
		return nil, err
	}
	return a.open(newName, vfs.Create, nil)
}

func (a adapter) Stat(name string) (pvfs.FileInfo, error) {
	info, err := a.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	return fileInfo{name: filepath.Base(name), info: info}, nil
}

func (a adapter) GetDiskUsage(path string) (pvfs.DiskUsage, error) {
	u, err := a.fs.Usage(path)
	if err != nil {
		return pvfs.DiskUsage{}, err
	}
	return pvfs.DiskUsage{AvailBytes: u.Free, TotalBytes: u.Total, UsedBytes: u.Total - u.Free}, nil
}

func (a adapter) Link(oldName, newName string) error        { return a.fs.Link(oldName, newName) }
func (a adapter) Remove(name string) error                  { return a.fs.Remove(name) }
func (a adapter) RemoveAll(name string) error               { return a.fs.RemoveAll(name) }
func (a adapter) Rename(oldName, newName string) error      { return a.fs.Rename(oldName, newName) }
func (a adapter) MkdirAll(name string, _ os.FileMode) error { return a.fs.MkdirAll(name) }
func (a adapter) Lock(name string) (io.Closer, error)       { return a.fs.Lock(name) }
func (a adapter) List(name string) ([]string, error)        { return a.fs.List(name) }
func (a adapter) PathBase(path string) string               { return filepath.Base(path) }
func (a adapter) PathJoin(elem ...string) string            { return filepath.Join(elem...) }
func (a adapter) PathDir(path string) string                { return filepath.Dir(path) }
func (a adapter) Unwrap() pvfs.FS                           { return nil }

// file adds the position that Read and Write share.
type file struct {
	f   vfs.File
	mu  sync.Mutex
	pos int64
}

func (f *file) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.f.ReadAt(p, f.pos)
	f.pos += int64(n)
	if n > 0 && err == io.EOF {
		err = nil // the next call reports it
	}
	return n, err
}

func (f *file) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.f.WriteAt(p, f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f *file) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }
func (f *file) Close() error                             { return f.f.Close() }
func (f *file) Sync() error                              { return f.f.Sync() }
func (f *file) SyncData() error                          { return f.f.Sync() }

// SyncTo promises nothing, and does nothing.
func (f *file) SyncTo(int64) (bool, error) { return false, nil }

// Preallocate does nothing: it must not change the size, and tests do not check
// reservations.
func (f *file) Preallocate(int64, int64) error { return nil }
func (f *file) Prefetch(int64, int64) error    { return nil }
func (f *file) Fd() uintptr                    { return pvfs.InvalidFd }

func (f *file) Stat() (pvfs.FileInfo, error) {
	size, err := f.f.Size()
	if err != nil {
		return nil, err
	}
	return fileInfo{name: filepath.Base(f.f.Name()), info: vfs.Info{Size: size}}, nil
}

// dir is an open directory: it can only be synced.
type dir struct {
	fs   vfs.FS
	name string
	info vfs.Info
}

var errIsDir = errors.New("pebblevfs: is a directory")

func (d *dir) Read([]byte) (int, error)           { return 0, errIsDir }
func (d *dir) ReadAt([]byte, int64) (int, error)  { return 0, errIsDir }
func (d *dir) Write([]byte) (int, error)          { return 0, errIsDir }
func (d *dir) WriteAt([]byte, int64) (int, error) { return 0, errIsDir }
func (d *dir) Close() error                       { return nil }
func (d *dir) Sync() error                        { return d.fs.SyncDir(d.name) }
func (d *dir) SyncData() error                    { return d.Sync() }
func (d *dir) SyncTo(int64) (bool, error)         { return false, nil }
func (d *dir) Preallocate(int64, int64) error     { return nil }
func (d *dir) Prefetch(int64, int64) error        { return nil }
func (d *dir) Fd() uintptr                        { return pvfs.InvalidFd }
func (d *dir) Stat() (pvfs.FileInfo, error) {
	return fileInfo{name: filepath.Base(d.name), info: d.info}, nil
}

type fileInfo struct {
	name string
	info vfs.Info
}

func (i fileInfo) Name() string            { return i.name }
func (i fileInfo) Size() int64             { return i.info.Size }
func (i fileInfo) IsDir() bool             { return i.info.Dir }
func (i fileInfo) ModTime() time.Time      { return time.Time{} }
func (i fileInfo) Sys() any                { return nil }
func (i fileInfo) DeviceID() pvfs.DeviceID { return pvfs.DeviceID{} }
func (i fileInfo) Mode() os.FileMode {
	if i.info.Dir {
		return os.ModeDir | 0o700
	}
	return 0o600
}
