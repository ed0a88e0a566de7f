package fuse_test

import (
	"os"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mknodOf makes and removes a special file.
func mknodOf(typ uint32) func(*leakEnv, string) leakCall {
	return onPath(func(_ *leakEnv, path string) error { return unix.Mknod(path, typ|0o600, int(unix.Mkdev(1, 3))) }, unix.Unlink)
}

// fallocates makes one call on a file of its own with bytes that are not committed.
func fallocates(mode uint32, off, n int64) func(*leakEnv, string) leakCall {
	return onDirty(0, func(_ *leakEnv, fd int) error { return unix.Fallocate(fd, mode, off, n) })
}

// copies copies from another file to one of its own, which has bytes that are not committed.
func copies(n int) func(*leakEnv, string) leakCall {
	return func(e *leakEnv, path string) leakCall {
		require.NoError(e.t, os.WriteFile(path+"-from", e.buf, 0o644))
		src, closeSrc := e.shared(path + "-from")
		call := onDirty(0, func(_ *leakEnv, fd int) error {
			var from, to int64
			did, err := unix.CopyFileRange(src, &from, fd, &to, n, 0)
			return size(did, n, err)
		})(e, path)
		undo := call.undo
		call.undo = func() {
			undo()
			closeSrc()
			_ = unix.Unlink(path + "-from")
		}
		return call
	}
}

// specialRows are the calls that make special files, as far as the process may make them.
func specialRows() (rows []leakRow) {
	for name, typ := range specialTypes() {
		rows = append(rows, leakRow{name: "mknod of a " + name, ops: []string{"Mknod"}, asks: "create", prep: mknodOf(typ)})
	}
	return rows
}

// rangeRows are the calls on special files, ranges and files without names.
var rangeRows = append(specialRows(), []leakRow{
	{name: "rename with a whiteout", ops: []string{"Rename"}, asks: "rename", prep: func(e *leakEnv, path string) leakCall {
		e.touch(path)
		return leakCall{func() error {
			return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+"-to", unix.RENAME_WHITEOUT)
		}, func() {
			_ = unix.Unlink(path)
			_ = unix.Unlink(path + "-to")
		}}
	}},
	{name: "fallocate", ops: []string{"Fallocate"}, asks: "commit", prep: fallocates(0, 0, 1<<20)},
	{name: "fallocate that does nothing", ops: []string{"Fallocate"}, prep: fallocates(unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20)},
	{name: "fallocate of a hole", ops: []string{"Fallocate"}, asks: "commit",
		prep: fallocates(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 10, 1000)},
	{name: "fallocate of zeros", ops: []string{"Fallocate"}, asks: "commit", prep: fallocates(unix.FALLOC_FL_ZERO_RANGE, 10, 10_000)},
	{name: "fallocate of what cannot be", ops: []string{"Fallocate"}, want: unix.EOPNOTSUPP, prep: fallocates(unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096)},
	{name: "copy_file_range by a clone", ops: []string{"CopyFileRange"}, asks: "clone", prep: copies(128 << 10)},
	{name: "copy_file_range of few bytes", ops: []string{"CopyFileRange"}, prep: copies(1000)},
	{name: "open without a name", ops: []string{"Tmpfile", "Release"}, asks: "create", prep: func(e *leakEnv, _ string) leakCall {
		fd := -1
		return leakCall{func() (err error) {
			fd, err = unix.Open(e.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
			return err
		}, func() {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}}
	}},
	{name: "link of an open file without a name", ops: []string{"Link", "Tmpfile"}, asks: "link", prep: func(e *leakEnv, path string) leakCall {
		fd, err := unix.Open(e.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		require.NoError(e.t, err)
		return leakCall{func() error { return linkFd(fd, path) }, func() {
			_ = unix.Close(fd)
			_ = unix.Unlink(path)
		}}
	}},
}...)
