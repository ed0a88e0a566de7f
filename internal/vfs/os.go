package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// OS is the machine's file system. The zero value is ready to use. Its files and
// directories are closed to other users of the machine: they hold data that
// certificates confine over the network.
type OS struct{}

// The modes of new files and directories.
const (
	fileMode = 0o600
	dirMode  = 0o700
)

var _ FS = OS{}

// Open implements FS.
func (OS) Open(name string, flag OpenFlag) (File, error) {
	mode := osFlags(flag)
	if flag&Direct != 0 {
		f, err := os.OpenFile(name, mode|unix.O_DIRECT, fileMode)
		if err == nil {
			return &osFile{f: f, direct: true}, nil
		}
		if !errors.Is(err, syscall.EINVAL) {
			return nil, err
		}
		// The file system has no O_DIRECT. It may have made the file before it
		// returned the error: Exclusive must not then fail on our own file.
		if flag&Exclusive != 0 {
			mode &^= os.O_EXCL
		}
	}
	f, err := os.OpenFile(name, mode, fileMode)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f}, nil
}

func osFlags(flag OpenFlag) int {
	mode := os.O_RDONLY
	if flag&(Write|Create|Truncate) != 0 {
		mode = os.O_RDWR
	}
	if flag&Create != 0 {
		mode |= os.O_CREATE
	}
	if flag&Exclusive != 0 {
		mode |= os.O_EXCL
	}
	if flag&Truncate != 0 {
		mode |= os.O_TRUNC
	}
	return mode
}

// Rename implements FS.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Link implements FS.
func (OS) Link(oldName, newName string) error { return os.Link(oldName, newName) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// RemoveAll implements FS.
func (OS) RemoveAll(name string) error { return os.RemoveAll(name) }

// MkdirAll implements FS.
func (OS) MkdirAll(name string) error { return os.MkdirAll(name, dirMode) }

// List implements FS.
func (OS) List(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// Stat implements FS.
func (OS) Stat(name string) (Info, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	info := Info{Size: fi.Size(), Dir: fi.IsDir()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.Bytes = st.Blocks * 512
	}
	return info, nil
}

// SyncDir implements FS.
func (OS) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// Lock implements FS with flock(2). This also excludes a second lock within this
// process, and the kernel releases it however the process ends.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	err = control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return f, nil
}

// Usage implements FS. Free is what an unprivileged process may use.
func (OS) Usage(path string) (Usage, error) {
	var st unix.Statfs_t
	if err := retryIntr(func() error { return unix.Statfs(path, &st) }); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	size := uint64(st.Bsize)
	return Usage{Total: st.Blocks * size, Free: st.Bavail * size}, nil
}

// osFile is a File of OS. os.File keeps the descriptor open while a call uses it,
// so that Close may run concurrently with other calls.
type osFile struct {
	f      *os.File
	direct bool
}

func (o *osFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := o.f.ReadAt(p, off)
	if o.direct && n > 0 && n < len(p) && errors.Is(err, syscall.EINVAL) {
		// The read ended at the end of the file, not at a block boundary; O_DIRECT
		// refused the next read from there.
		err = io.EOF
	}
	return n, err
}

func (o *osFile) WriteAt(p []byte, off int64) (int, error) { return o.f.WriteAt(p, off) }

func (o *osFile) Sync() error {
	return o.path("fdatasync", control(o.f, unix.Fdatasync))
}

func (o *osFile) Truncate(size int64) error { return o.f.Truncate(size) }

func (o *osFile) Allocate(off, n int64) error {
	err := control(o.f, func(fd int) error { return unix.Fallocate(fd, 0, off, n) })
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		return o.path("fallocate", err)
	}
	// No reservation on this file system: only the size can be set.
	size, err := o.Size()
	if err != nil || size >= off+n {
		return err
	}
	return o.f.Truncate(off + n)
}

func (o *osFile) PunchHole(off, n int64) error {
	return o.path("punch hole", control(o.f, func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	}))
}

func (o *osFile) Size() (int64, error) {
	fi, err := o.f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (o *osFile) Direct() bool { return o.direct }
func (o *osFile) Name() string { return o.f.Name() }
func (o *osFile) Close() error { return o.f.Close() }

func (o *osFile) path(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: o.f.Name(), Err: err}
}

// control runs fn with f's descriptor, and repeats it while it is interrupted.
func control(f *os.File, fn func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = c.Control(func(fd uintptr) {
		inner = retryIntr(func() error { return fn(int(fd)) })
	})
	if err != nil {
		return fs.ErrClosed // the only way in which Control fails
	}
	return inner
}

func retryIntr(fn func() error) error {
	for {
		if err := fn(); err != syscall.EINTR {
			return err
		}
	}
}
