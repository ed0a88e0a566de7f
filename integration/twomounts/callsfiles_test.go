package twomounts_test

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// procPath is a path to an open file.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// fileCalls open, read and write files.
var fileCalls = []operation{
	{name: "write whole", weight: 14, paths: 1, opens: true, content: true,
		flags: []int{unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC, unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL, unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND},
		do:    writeWhole},
	{name: "read whole", weight: 14, paths: 1, opens: true, content: true, do: readWhole},
	{name: "open", weight: 26, paths: 1, opens: true, content: true, flags: openFlags, do: func(d *side, s *step) string {
		return d.open(unix.Openat(d.top, s.path, s.flags|unix.O_NONBLOCK|unix.O_CLOEXEC, s.mode))
	}},
	{name: "tmpfile", weight: 5, paths: 1, opens: true, content: true, flags: []int{unix.O_RDWR, unix.O_WRONLY, unix.O_RDWR | unix.O_EXCL, unix.O_RDONLY},
		do: func(d *side, s *step) string {
			return d.open(unix.Openat(d.top, s.path, s.flags|unix.O_TMPFILE|unix.O_CLOEXEC, s.mode))
		}},
	{name: "reopen", weight: 4, uses: 1, content: true, flags: []int{unix.O_RDONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND},
		do: func(d *side, s *step) string {
			return d.open(unix.Open(procPath(d.fds[s.slot]), s.flags|unix.O_CLOEXEC, 0))
		}},
	{name: "link open file", weight: 3, uses: 1, paths: 1, do: func(d *side, s *step) string {
		return result(unix.Linkat(unix.AT_FDCWD, procPath(d.fds[s.slot]), d.top, s.path, unix.AT_SYMLINK_FOLLOW))
	}},
	{name: "close", weight: 3, uses: 1, content: true, do: func(d *side, s *step) string {
		err := unix.Close(d.fds[s.slot])
		d.fds[s.slot] = -1
		return result(err)
	}},
	{name: "pwrite", weight: 14, uses: 1, content: true, do: func(d *side, s *step) string {
		n, err := unix.Pwrite(d.fds[s.slot], bytesOf(s), s.off)
		return result(err, n)
	}},
	{name: "pread", weight: 10, uses: 1, content: true, do: func(d *side, s *step) string {
		b := make([]byte, s.n)
		n, err := unix.Pread(d.fds[s.slot], b, s.off)
		return result(err, sum(b[:max(n, 0)]))
	}},
	{name: "write", weight: 6, uses: 1, content: true, do: func(d *side, s *step) string {
		n, err := unix.Write(d.fds[s.slot], bytesOf(s))
		return result(err, n)
	}},
	{name: "read", weight: 4, uses: 1, content: true, do: func(d *side, s *step) string {
		b := make([]byte, s.n)
		n, err := unix.Read(d.fds[s.slot], b)
		return result(err, sum(b[:max(n, 0)]))
	}},
	{name: "read all", weight: 4, uses: 1, content: true, do: func(d *side, s *step) string {
		b, err := readAll(d.fds[s.slot])
		return result(err, sum(b))
	}},
	{name: "seek", weight: 3, uses: 1, content: true, flags: []int{unix.SEEK_SET, unix.SEEK_CUR, unix.SEEK_END}, do: func(d *side, s *step) string {
		at, err := unix.Seek(d.fds[s.slot], s.off-s.off2, s.flags)
		return result(err, at)
	}},
	{name: "ftruncate", weight: 6, uses: 1, content: true, do: func(d *side, s *step) string {
		return result(unix.Ftruncate(d.fds[s.slot], s.off))
	}},
	{name: "fsync", weight: 4, uses: 1, content: true, do: func(d *side, s *step) string { return result(unix.Fsync(d.fds[s.slot])) }},
	{name: "fdatasync", weight: 2, uses: 1, content: true, do: func(d *side, s *step) string { return result(unix.Fdatasync(d.fds[s.slot])) }},
	{name: "read mapped", weight: 4, uses: 1, content: true, do: func(d *side, s *step) string {
		return d.mapped(s, unix.PROT_READ, func(b []byte) error { return nil })
	}},
	{name: "write mapped", weight: 4, uses: 1, content: true, do: func(d *side, s *step) string {
		return d.mapped(s, unix.PROT_READ|unix.PROT_WRITE, func(b []byte) error {
			copy(b[min(int(s.off), len(b)):], bytesOf(s))
			return unix.Msync(b, unix.MS_SYNC)
		})
	}},
}

// open keeps what a step has opened, for its slot. A directory is closed again: the
// other mount may remove it.
func (d *side) open(fd int, err error) string {
	if err != nil {
		return result(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return result(err, "directory", unix.Close(fd))
	}
	d.opened = fd
	return "ok"
}

// mapped maps a file whole, calls change, and returns what the memory has then.
func (d *side) mapped(s *step, prot int, change func(b []byte) error) string {
	var st unix.Stat_t
	if err := unix.Fstat(d.fds[s.slot], &st); err != nil || st.Size == 0 {
		return result(err, "empty")
	}
	b, err := unix.Mmap(d.fds[s.slot], 0, int(st.Size), prot, []int{unix.MAP_SHARED, unix.MAP_SHARED, unix.MAP_PRIVATE}[s.seed%3])
	if err != nil {
		return result(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if err := change(b); err != nil {
		return result(err)
	}
	return sum(b)
}
