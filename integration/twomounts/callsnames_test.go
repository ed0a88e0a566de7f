package twomounts_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nameCalls make, remove and list names.
var nameCalls = []operation{
	{name: "mkdir", weight: 8, paths: 1, do: func(d *side, s *step) string { return result(unix.Mkdirat(d.top, s.path, s.mode)) }},
	{name: "rmdir", weight: 4, paths: 1, do: func(d *side, s *step) string { return result(unix.Unlinkat(d.top, s.path, unix.AT_REMOVEDIR)) }},
	{name: "unlink", weight: 6, paths: 1, do: func(d *side, s *step) string { return result(unix.Unlinkat(d.top, s.path, 0)) }},
	{name: "rename", weight: 14, paths: 2,
		flags: []int{0, 0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_EXCHANGE, unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE},
		do: func(d *side, s *step) string {
			return result(unix.Renameat2(d.top, s.path, d.top, s.path2, uint(s.flags)))
		}},
	{name: "link", weight: 8, paths: 2, flags: []int{0, unix.AT_SYMLINK_FOLLOW},
		do: func(d *side, s *step) string { return result(unix.Linkat(d.top, s.path, d.top, s.path2, s.flags)) }},
	{name: "symlink", weight: 6, paths: 1, do: func(d *side, s *step) string {
		return result(unix.Symlinkat(s.target(), d.top, s.path))
	}},
	{name: "readlink", weight: 4, paths: 1, do: readlink},
	{name: "mknod", weight: 4, paths: 1, flags: []int{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFREG, unix.S_IFDIR, 0},
		do: func(d *side, s *step) string {
			return result(unix.Mknodat(d.top, s.path, uint32(s.flags)|s.mode, int(unix.Mkdev(uint32(s.off%4000), uint32(s.off2)%(1<<20)))))
		}},
	{name: "list", weight: 6, paths: 1, do: list},
	{name: "fifo", weight: 2, paths: 1, do: throughFifo},
	{name: "sync directory", weight: 1, paths: 1, do: func(d *side, s *step) string {
		fd, err := unix.Openat(d.top, s.path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return result(err)
		}
		return result(unix.Fsync(fd), unix.Close(fd))
	}},
}

// target is what a step's symbolic link leads to.
func (s *step) target() string {
	switch s.seed % 12 {
	case 0:
		return strings.Repeat("t", 4095)
	case 1:
		return strings.Repeat("t", 4096)
	case 2:
		return ""
	case 3:
		return "../" + s.path2
	case 4:
		return "."
	case 5:
		return ".."
	case 6:
		return "l"
	case 7:
		return strings.Repeat("./", 1000) + s.path2
	}
	return s.path2
}

func readlink(d *side, s *step) string {
	b := make([]byte, []int{1, 5000}[s.seed%2])
	n, err := unix.Readlinkat(d.top, s.path, b)
	return result(err, string(b[:max(n, 0)]))
}

// list returns the names of a directory, and their kinds.
func list(d *side, s *step) string {
	fd, err := unix.Openat(d.top, s.path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return result(err)
	}
	defer unix.Close(fd)
	var names []string
	b := make([]byte, 2048)
	for {
		n, err := unix.Getdents(fd, b)
		if n <= 0 {
			slices.Sort(names)
			return result(err, strings.Join(names, " "))
		}
		for at := 0; at < n; {
			size := int(binary.NativeEndian.Uint16(b[at+16:]))
			name, _, _ := strings.Cut(string(b[at+19:at+size]), "\x00")
			names = append(names, fmt.Sprintf("%q:%d", name, b[at+18]))
			at += size
		}
	}
}

// throughFifo passes bytes through a fifo.
func throughFifo(d *side, s *step) string {
	var st unix.Stat_t
	if err := unix.Fstatat(d.top, s.path, &st, 0); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return result(err, "no fifo")
	}
	fd, err := unix.Openat(d.top, s.path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return result(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("bytes")); err != nil {
		return result(err)
	}
	b := make([]byte, 10)
	n, err := unix.Read(fd, b)
	return result(err, string(b[:max(n, 0)]))
}
