package pebblevfs

import (
	"errors"
	"io"
	"os"

	pvfs "github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// private closes the files of pebble's own file system to other users of the
// machine.
type private struct{ pvfs.FS }

const (
	privateFile = 0o600
	privateDir  = 0o700
)

// Create implements pvfs.FS.
func (p private) Create(name string, category pvfs.DiskWriteCategory) (pvfs.File, error) {
	f, err := p.FS.Create(name, category)
	return closed(f, err)
}

// OpenReadWrite implements pvfs.FS.
func (p private) OpenReadWrite(name string, category pvfs.DiskWriteCategory, opts ...pvfs.OpenOption) (pvfs.File, error) {
	f, err := p.FS.OpenReadWrite(name, category, opts...)
	return closed(f, err)
}

func closed(f pvfs.File, err error) (pvfs.File, error) {
	if err != nil {
		return f, err
	}
	if err := unix.Fchmod(int(f.Fd()), privateFile); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// MkdirAll implements pvfs.FS.
func (p private) MkdirAll(name string, _ os.FileMode) error { return p.FS.MkdirAll(name, privateDir) }

// Lock implements pvfs.FS.
func (p private) Lock(name string) (io.Closer, error) {
	l, err := p.FS.Lock(name)
	if err != nil {
		return l, err
	}
	if err := os.Chmod(name, privateFile); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Unwrap implements pvfs.FS.
func (p private) Unwrap() pvfs.FS { return p.FS }
