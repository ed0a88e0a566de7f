package vfs

import (
	"errors"
	"fmt"
	"io"
)

// OpKind says which method of FS or File an Op is.
type OpKind uint8

// The kinds of Op.
const (
	OpOpen OpKind = iota
	OpRename
	OpLink
	OpRemove
	OpRemoveAll
	OpMkdir
	OpList
	OpStat
	OpSyncDir
	OpLock
	OpUsage
	OpRead
	OpWrite
	OpSync
	OpTruncate
	OpAllocate
	OpPunchHole
	OpClose
	opKinds
)

var opNames = [opKinds]string{
	"open", "rename", "link", "remove", "removeall", "mkdir", "list", "stat", "syncdir", "lock",
	"usage", "read", "write", "sync", "truncate", "allocate", "punchhole", "close",
}

func (k OpKind) String() string {
	if k < opKinds {
		return opNames[k]
	}
	return fmt.Sprintf("op(%d)", uint8(k))
}

// Op is one call, as a Rule sees it.
type Op struct {
	Kind OpKind
	// Path is the file or directory; for Rename and Link the old name.
	Path string
	// NewPath is the new name of Rename and Link.
	NewPath string
	// Flag is Open's.
	Flag OpenFlag
	// Off and Len are the range of Read, Write, Allocate and PunchHole; for
	// Truncate the size is in Off.
	Off, Len int64
}

// Rule is called before each call, by its goroutine. It may block to delay the
// call, or inspect the file system below. nil lets the call run. Drop skips it and
// reports success. An error wrapped by Afterwards is returned after the call has
// run. Any other error is returned instead of running it.
type Rule func(op Op) error

// Drop, returned by a Rule, makes a Sync, SyncDir, Write, Truncate, Rename, Link,
// Remove or RemoveAll report success without doing anything. For another kind it
// panics, since there is no result to return.
var Drop = errors.New("vfs: dropped")

// Afterwards wraps an error that a Rule returns for a call that takes effect: the
// step succeeds but its reply is lost.
func Afterwards(err error) error { return &afterwards{err} }

type afterwards struct{ err error }

func (a *afterwards) Error() string { return a.err.Error() }
func (a *afterwards) Unwrap() error { return a.err }

// Fault is a wrapper that calls a Rule for each call.
type Fault struct {
	fs   FS
	rule Rule
}

// NewFault wraps fs. rule may be called concurrently.
func NewFault(fs FS, rule Rule) *Fault { return &Fault{fs: fs, rule: rule} }

// do calls the rule, and runs the call as it says.
func (f *Fault) do(op Op, run func() error) error {
	err := f.rule(op)
	if err == nil {
		return run()
	}
	if err == Drop {
		switch op.Kind {
		case OpSync, OpSyncDir, OpWrite, OpTruncate, OpRename, OpLink, OpRemove, OpRemoveAll:
			return nil
		}
		panic(fmt.Sprintf("vfs: a rule dropped %s of %s", op.Kind, op.Path))
	}
	var after *afterwards
	if errors.As(err, &after) {
		if runErr := run(); runErr != nil {
			return runErr
		}
		return after.err
	}
	return err
}

// Open implements FS.
func (f *Fault) Open(name string, flag OpenFlag) (file File, err error) {
	err = f.do(Op{Kind: OpOpen, Path: name, Flag: flag}, func() error {
		file, err = f.fs.Open(name, flag)
		return err
	})
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, err
	}
	return &faultFile{File: file, f: f}, nil
}

// Rename implements FS.
func (f *Fault) Rename(oldName, newName string) error {
	return f.do(Op{Kind: OpRename, Path: oldName, NewPath: newName}, func() error {
		return f.fs.Rename(oldName, newName)
	})
}

// Link implements FS.
func (f *Fault) Link(oldName, newName string) error {
	return f.do(Op{Kind: OpLink, Path: oldName, NewPath: newName}, func() error {
		return f.fs.Link(oldName, newName)
	})
}

// Remove implements FS.
func (f *Fault) Remove(name string) error {
	return f.do(Op{Kind: OpRemove, Path: name}, func() error { return f.fs.Remove(name) })
}

// RemoveAll implements FS.
func (f *Fault) RemoveAll(name string) error {
	return f.do(Op{Kind: OpRemoveAll, Path: name}, func() error { return f.fs.RemoveAll(name) })
}

// MkdirAll implements FS.
func (f *Fault) MkdirAll(name string) error {
	return f.do(Op{Kind: OpMkdir, Path: name}, func() error { return f.fs.MkdirAll(name) })
}

// List implements FS.
func (f *Fault) List(dir string) (names []string, err error) {
	err = f.do(Op{Kind: OpList, Path: dir}, func() error {
		names, err = f.fs.List(dir)
		return err
	})
	return names, err
}

// Stat implements FS.
func (f *Fault) Stat(name string) (info Info, err error) {
	err = f.do(Op{Kind: OpStat, Path: name}, func() error {
		info, err = f.fs.Stat(name)
		return err
	})
	return info, err
}

// SyncDir implements FS.
func (f *Fault) SyncDir(dir string) error {
	return f.do(Op{Kind: OpSyncDir, Path: dir}, func() error { return f.fs.SyncDir(dir) })
}

// Lock implements FS.
func (f *Fault) Lock(name string) (lock io.Closer, err error) {
	err = f.do(Op{Kind: OpLock, Path: name}, func() error {
		lock, err = f.fs.Lock(name)
		return err
	})
	if err != nil && lock != nil {
		lock.Close()
		lock = nil
	}
	return lock, err
}

// Usage implements FS.
func (f *Fault) Usage(path string) (usage Usage, err error) {
	err = f.do(Op{Kind: OpUsage, Path: path}, func() error {
		usage, err = f.fs.Usage(path)
		return err
	})
	return usage, err
}

type faultFile struct {
	File
	f *Fault
}

func (f *faultFile) do(kind OpKind, off, n int64, run func() error) error {
	return f.f.do(Op{Kind: kind, Path: f.Name(), Off: off, Len: n}, run)
}

func (f *faultFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do(OpRead, off, int64(len(p)), func() error {
		n, err = f.File.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *faultFile) WriteAt(p []byte, off int64) (n int, err error) {
	n = len(p) // the result of a dropped write
	err = f.do(OpWrite, off, int64(len(p)), func() error {
		n, err = f.File.WriteAt(p, off)
		return err
	})
	if err != nil && n == len(p) {
		n = 0
	}
	return n, err
}

func (f *faultFile) Sync() error {
	return f.do(OpSync, 0, 0, f.File.Sync)
}

func (f *faultFile) Truncate(size int64) error {
	return f.do(OpTruncate, size, 0, func() error { return f.File.Truncate(size) })
}

func (f *faultFile) Allocate(off, n int64) error {
	return f.do(OpAllocate, off, n, func() error { return f.File.Allocate(off, n) })
}

func (f *faultFile) PunchHole(off, n int64) error {
	return f.do(OpPunchHole, off, n, func() error { return f.File.PunchHole(off, n) })
}

func (f *faultFile) Close() error {
	err := f.do(OpClose, 0, 0, f.File.Close)
	return err
}
