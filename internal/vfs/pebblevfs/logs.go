package pebblevfs

import (
	"errors"
	"path"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
)

// WatchLogs returns fsys, and watches the write-ahead logs that pebble keeps in it.
// It calls closed when a log is closed, before pebble gets the result, with the
// first error of the file until then, or nil. It calls closed in the goroutine that
// closes the log; closed need not return.
func WatchLogs(fsys pvfs.FS, closed func(error)) pvfs.FS {
	return logFS{FS: fsys, closed: closed}
}

type logFS struct {
	pvfs.FS
	closed func(error)
}

// Create implements pvfs.FS.
func (l logFS) Create(name string, category pvfs.DiskWriteCategory) (pvfs.File, error) {
	f, err := l.FS.Create(name, category)
	return l.watched(name, f, err)
}

// ReuseForWrite implements pvfs.FS.
func (l logFS) ReuseForWrite(oldName, newName string, category pvfs.DiskWriteCategory) (pvfs.File, error) {
	f, err := l.FS.ReuseForWrite(oldName, newName, category)
	return l.watched(newName, f, err)
}

// Unwrap implements pvfs.FS.
func (l logFS) Unwrap() pvfs.FS { return l.FS }

func (l logFS) watched(name string, f pvfs.File, err error) (pvfs.File, error) {
	if err != nil || path.Ext(name) != ".log" {
		return f, err
	}
	return &logFile{File: f, closed: l.closed}, nil
}

// logFile is a log. pebble writes and syncs it in one goroutine, and closes it
// after that goroutine has ended.
type logFile struct {
	pvfs.File
	closed func(error)
	failed error // the first error
}

func (f *logFile) note(err error) error {
	if f.failed == nil {
		f.failed = err
	}
	return err
}

// Write implements pvfs.File.
func (f *logFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.note(err)
}

// Sync implements pvfs.File.
func (f *logFile) Sync() error { return f.note(f.File.Sync()) }

// SyncData implements pvfs.File.
func (f *logFile) SyncData() error { return f.note(f.File.SyncData()) }

// SyncTo implements pvfs.File.
func (f *logFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.note(err)
}

// Close implements pvfs.File.
func (f *logFile) Close() error {
	err := f.File.Close()
	f.closed(errors.Join(f.failed, err))
	return err
}
