package fuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onPath is a call that makes path or needs nothing.
func onPath(do func(e *leakEnv, path string) error, undo func(path string) error) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, path string) leakCall {
		return leakCall{func() error { return do(e, path) }, func() {
			if undo != nil {
				_ = undo(path)
			}
		}}
	}
}

// onFile is a call on the shared file, open.
func onFile(do func(e *leakEnv, fd int) error) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.file)
		return leakCall{func() error { return do(e, fd) }, undo}
	}
}

// onDirty is a call on a file of its own with bytes that are not committed.
func onDirty(flags int, do func(e *leakEnv, fd int) error) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, 0)
		_, err := unix.Pwrite(fd, e.buf[:4000], 0)
		require.NoError(e.t, err)
		return leakCall{func() error { return do(e, fd) }, undo}
	}
}

// size checks how many bytes a call returned.
func size(n, want int, err error) error {
	if err == nil && n != want {
		return fmt.Errorf("%d bytes, not %d", n, want)
	}
	return err
}

// spliced reads 4096 bytes at off into a pipe, and checks how many came.
func spliced(fd int, off int64, want int) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0]) //nolint:errcheck // it was only read
	defer unix.Close(pipe[1]) //nolint:errcheck
	n, err := unix.Splice(fd, &off, pipe[1], nil, 4096, 0)
	return size(int(n), want, err)
}

const leakContent = 10_000

var leakRows = append(rangeRows, []leakRow{
	{name: "stat", ops: []string{"Lookup", "GetAttr"}, asks: "lookup",
		prep: onPath(func(e *leakEnv, _ string) error { return unix.Stat(e.file, &unix.Stat_t{}) }, nil)},
	{name: "stat of nothing", ops: []string{"Lookup"}, asks: "lookup", want: unix.ENOENT,
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Stat(path, &unix.Stat_t{}) }, nil)},
	{name: "fstat", ops: []string{"GetAttr"}, asks: "getattr",
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fstat(fd, &unix.Stat_t{}) })},
	{name: "fchmod", ops: []string{"SetAttr"}, asks: "setattr",
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fchmod(fd, 0o640) })},
	{name: "mknod", ops: []string{"Mknod"}, asks: "create",
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Mknod(path, unix.S_IFREG|0o644, 0) }, unix.Unlink)},
	{name: "mkdir", ops: []string{"Mkdir"}, asks: "create",
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Mkdir(path, 0o755) }, unix.Rmdir)},
	{name: "mkdir of what exists", ops: []string{"Mkdir"}, want: unix.EEXIST,
		prep: onPath(func(e *leakEnv, _ string) error { return unix.Mkdir(e.dir, 0o755) }, nil)},
	{name: "rmdir", ops: []string{"Rmdir", "Forget"}, asks: "remove", prep: func(e *leakEnv, path string) leakCall {
		require.NoError(e.t, unix.Mkdir(path, 0o755))
		return leakCall{func() error { return unix.Rmdir(path) }, func() { _ = unix.Rmdir(path) }}
	}},
	{name: "unlink", ops: []string{"Unlink", "Forget"}, asks: "remove", prep: func(e *leakEnv, path string) leakCall {
		e.touch(path)
		return leakCall{func() error { return unix.Unlink(path) }, func() { _ = unix.Unlink(path) }}
	}},
	{name: "unlink of an open file", ops: []string{"Unlink", "Release", "Forget"}, asks: "remove", prep: func(e *leakEnv, path string) leakCall {
		_, undo := e.open(path, 0)
		return leakCall{func() error { return unix.Unlink(path) }, undo}
	}},
	{name: "unlink whose release fails", ops: []string{"Unlink", "Release"}, prep: func(e *leakEnv, path string) leakCall {
		_, undo := e.open(path, 0)
		return leakCall{func() error { return unix.Unlink(path) }, func() {
			e.servers.failing("release", 0)
			undo()
			for i := 0; e.servers.count() == 0 && i < 10_000; i++ { // in the background
				time.Sleep(time.Millisecond)
			}
			e.servers.open()
		}}
	}},
	{name: "rename", ops: []string{"Rename"}, asks: "rename", prep: func(e *leakEnv, path string) leakCall {
		e.touch(path)
		e.touch(path + "-to")
		return leakCall{func() error { return unix.Rename(path, path+"-to") }, func() {
			_ = unix.Unlink(path)
			_ = unix.Unlink(path + "-to")
		}}
	}},
	{name: "link", ops: []string{"Link"}, asks: "link",
		prep: onPath(func(e *leakEnv, path string) error { return unix.Link(e.file, path) }, unix.Unlink)},
	{name: "symlink", ops: []string{"Symlink"}, asks: "create",
		prep: onPath(func(_ *leakEnv, path string) error { return unix.Symlink("somewhere", path) }, unix.Unlink)},
	{name: "readlink", ops: []string{"Readlink"}, asks: "getattr",
		prep: onPath(func(e *leakEnv, _ string) error {
			n, err := unix.Readlink(e.link, make([]byte, 100))
			return size(n, len("somewhere"), err)
		}, nil)},
	{name: "getxattr", ops: []string{"GetXAttr"}, asks: "getxattr",
		prep: onFile(func(_ *leakEnv, fd int) error {
			n, err := unix.Fgetxattr(fd, "user.some", make([]byte, 100))
			return size(n, 5, err)
		})},
	{name: "getxattr of no bytes", ops: []string{"GetXAttr"}, asks: "getxattr",
		prep: onFile(func(_ *leakEnv, fd int) error {
			n, err := unix.Fgetxattr(fd, "user.none", make([]byte, 100))
			return size(n, 0, err)
		})},
	{name: "getxattr with no room", ops: []string{"GetXAttr"}, want: unix.ERANGE,
		prep: onFile(func(_ *leakEnv, fd int) error {
			_, err := unix.Fgetxattr(fd, "user.some", make([]byte, 1))
			return err
		})},
	{name: "listxattr", ops: []string{"ListXAttr"}, asks: "getxattr",
		prep: onFile(func(_ *leakEnv, fd int) error {
			_, err := unix.Flistxattr(fd, make([]byte, 1000))
			return err
		})},
	{name: "setxattr", ops: []string{"SetXAttr"}, asks: "setxattr",
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fsetxattr(fd, "user.other", []byte("value"), 0) })},
	{name: "removexattr of nothing", ops: []string{"RemoveXAttr"}, asks: "setxattr", want: unix.ENODATA,
		prep: onFile(func(_ *leakEnv, fd int) error { return unix.Fremovexattr(fd, "user.absent") })},
	{name: "create", ops: []string{"Create", "Release"}, asks: "create", prep: func(_ *leakEnv, path string) leakCall {
		fd := -1
		return leakCall{func() (err error) {
			fd, err = unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o644)
			return err
		}, func() {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			_ = unix.Unlink(path)
		}}
	}},
	{name: "open", ops: []string{"Open", "Flush", "Release"}, asks: "getattr", prep: openOf(func(e *leakEnv) string { return e.file }, 0)},
	{name: "open that was permitted", ops: []string{"Open"}, asks: "getattr", skip: 1, prep: openOf(func(e *leakEnv) string { return e.file }, 0)},
	{name: "open of a directory", ops: []string{"OpenDir", "ReleaseDir"},
		prep: openOf(func(e *leakEnv) string { return e.dir }, unix.O_DIRECTORY)},
	{name: "read", ops: []string{"Read"}, asks: "getextents", prep: onFile(func(e *leakEnv, fd int) error {
		n, err := unix.Pread(fd, e.buf[:4096], 0)
		return size(n, 4096, err)
	})},
	{name: "read of chunks", ops: []string{"Read"}, asks: "get_chunk", silence: true, prep: onFile(func(e *leakEnv, fd int) error {
		n, err := unix.Pread(fd, e.buf, 0)
		return size(n, leakContent, err)
	})},
	{name: "read of a mapping", ops: []string{"Read"}, asks: "getextents", noInterrupt: true, prep: onMapping(0, leakContent, nil)},
	{name: "read of a mapping at the end", ops: []string{"Read"}, asks: "getextents", noInterrupt: true,
		prep: onMapping(leakContent&^0xfff, 0x1000, nil)},
	{name: "read of a mapping past the end", ops: []string{"Read"}, want: unix.EFAULT, prep: onMapping((leakContent|0xfff)+1, 1, nil)},
	{name: "read of a mapping that was cut", ops: []string{"Read"}, asks: "getextents", noInterrupt: true, want: unix.EFAULT,
		prep: onMapping(0, 1, func(e *leakEnv, path string) { require.NoError(e.t, os.Truncate(e.other.at(filepath.Base(path)), 0)) })},
	{name: "read at the end", ops: []string{"Read"}, prep: onFile(func(e *leakEnv, fd int) error {
		n, err := unix.Pread(fd, e.buf, leakContent)
		return size(n, 0, err)
	})},
	{name: "read by splice", ops: []string{"Read"}, prep: onFile(func(_ *leakEnv, fd int) error { return spliced(fd, 0, 4096) })},
	{name: "read by splice at the end", ops: []string{"Read"}, prep: onFile(func(_ *leakEnv, fd int) error { return spliced(fd, leakContent, 0) })},
	{name: "listxattr of none", ops: []string{"ListXAttr"}, prep: func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, 0)
		return leakCall{func() error {
			n, err := unix.Flistxattr(fd, make([]byte, 1000))
			return size(n, 0, err)
		}, undo}
	}},
	{name: "write of no bytes", ops: []string{"Write"}, prep: onDirty(0, func(_ *leakEnv, fd int) error {
		n, err := unix.Pwrite(fd, nil, 1000)
		return size(n, 0, err)
	})},
	{name: "write", ops: []string{"Write"}, prep: onDirty(0, func(e *leakEnv, fd int) error {
		n, err := unix.Pwrite(fd, e.buf[:5000], 1000)
		return size(n, 5000, err)
	})},
	{name: "write that syncs", ops: []string{"Write"}, asks: "commit", prep: func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, unix.O_DSYNC)
		return leakCall{func() error {
			n, err := unix.Pwrite(fd, e.buf[:5000], 0)
			return size(n, 5000, err)
		}, undo}
	}},
	{name: "fsync", ops: []string{"Fsync"}, asks: "commit", prep: onDirty(0, func(_ *leakEnv, fd int) error { return unix.Fsync(fd) })},
	{name: "close", ops: []string{"Flush", "Release"}, asks: "commit", prep: func(e *leakEnv, path string) leakCall {
		fd, undo := e.open(path, 0)
		_, err := unix.Pwrite(fd, e.buf[:4000], 0)
		require.NoError(e.t, err)
		twin, err := unix.Dup(fd) // whose close is the last one
		require.NoError(e.t, err)
		return leakCall{func() error { return unix.Close(twin) }, undo}
	}},
	{name: "readdir", ops: []string{"ReadDir", "ReadDirPlus"}, asks: "readdir", prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.dir)
		return leakCall{func() error {
			_, err := unix.Getdents(fd, e.buf)
			return err
		}, undo}
	}},
	{name: "readdir at the end", ops: []string{"ReadDir", "ReadDirPlus"}, prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.dir)
		for n := 1; n > 0; {
			var err error
			n, err = unix.Getdents(fd, e.buf)
			require.NoError(e.t, err)
		}
		return leakCall{func() error {
			n, err := unix.Getdents(fd, e.buf)
			return size(n, 0, err)
		}, undo}
	}},
	{name: "fsync of a directory", ops: []string{"FsyncDir"}, prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.dir)
		return leakCall{func() error { return unix.Fsync(fd) }, undo}
	}},
	{name: "lseek to data", ops: []string{"Lseek"}, asks: "getattr", prep: onFile(func(_ *leakEnv, fd int) error {
		off, err := unix.Seek(fd, 100, unix.SEEK_DATA)
		return size(int(off), 100, err)
	})},
	{name: "lseek to a hole", ops: []string{"Lseek"}, asks: "getattr", prep: onFile(func(_ *leakEnv, fd int) error {
		off, err := unix.Seek(fd, 100, unix.SEEK_HOLE)
		return size(int(off), leakContent, err)
	})},
	{name: "lseek past the end", ops: []string{"Lseek"}, asks: "getattr", want: unix.ENXIO, prep: onFile(func(_ *leakEnv, fd int) error {
		_, err := unix.Seek(fd, leakContent, unix.SEEK_DATA)
		return err
	})},
	// After a signal the kernel repeats a call for a lock, so it does not end by one.
	{name: "getlk", ops: []string{"GetLk"}, asks: "getlock", prep: onFile(func(_ *leakEnv, fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &unix.Flock_t{Type: unix.F_RDLCK})
	})},
	{name: "setlk", ops: []string{"SetLk", "Flush"}, asks: "setlock", noInterrupt: true, prep: onFile(func(_ *leakEnv, fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
	})},
	{name: "setlk of what another has", ops: []string{"SetLk"}, asks: "setlock", noInterrupt: true, want: unix.EWOULDBLOCK, prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.file)
		other, err := unix.Open(e.other.at("file"), unix.O_RDONLY, 0)
		require.NoError(e.t, err)
		require.NoError(e.t, flockOf(other, unix.LOCK_EX))
		return leakCall{func() error { return flockOf(fd, unix.LOCK_SH|unix.LOCK_NB) }, func() {
			// At once: the next call's lock must not wait for the release of this descriptor.
			_ = flockOf(other, unix.LOCK_UN)
			_ = unix.Close(other)
			undo()
		}}
	}},
	{name: "unlock", ops: []string{"SetLk"}, asks: "setlock", noInterrupt: true, prep: func(e *leakEnv, _ string) leakCall {
		fd, undo := e.shared(e.file)
		require.NoError(e.t, flockOf(fd, unix.LOCK_SH))
		return leakCall{func() error { return flockOf(fd, unix.LOCK_UN) }, undo}
	}},
	{name: "setlkw", ops: []string{"SetLkw", "Release"}, asks: "setlock", noInterrupt: true, prep: onFile(func(_ *leakEnv, fd int) error {
		return flockOf(fd, unix.LOCK_SH)
	})},
	{name: "statfs", ops: []string{"StatFs"}, asks: "getcluster",
		prep: onPath(func(e *leakEnv, _ string) error { return unix.Statfs(e.dir, &unix.Statfs_t{}) }, nil)},
}...)

// flockOf is flock, repeated if the runtime's signals interrupt it.
func flockOf(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

func openOf(name func(*leakEnv) string, flags int) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, _ string) leakCall {
		fd := -1
		return leakCall{func() (err error) {
			fd, err = unix.Open(name(e), unix.O_RDONLY|flags, 0)
			return err
		}, func() {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}}
	}
}
