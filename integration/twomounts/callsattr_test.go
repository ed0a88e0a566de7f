package twomounts_test

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// attrCalls look at attributes, and set them.
var attrCalls = []operation{
	{name: "stat", weight: 6, paths: 1, content: true, flags: []int{0, unix.AT_SYMLINK_NOFOLLOW}, do: func(d *side, s *step) string {
		var st unix.Stat_t
		if err := unix.Fstatat(d.top, s.path, &st, s.flags); err != nil {
			return result(err)
		}
		return describe(&st, false)
	}},
	{name: "fstat", weight: 6, uses: 1, content: true, do: func(d *side, s *step) string {
		var st unix.Stat_t
		if err := unix.Fstat(d.fds[s.slot], &st); err != nil {
			return result(err)
		}
		return describe(&st, false)
	}},
	{name: "access", weight: 3, paths: 1, flags: []int{unix.R_OK, unix.W_OK, unix.X_OK, unix.R_OK | unix.W_OK, unix.F_OK}, do: func(d *side, s *step) string {
		return result(unix.Faccessat2(d.top, s.path, uint32(s.flags), unix.AT_EACCESS))
	}},
	{name: "chmod", weight: 6, paths: 1, content: true, do: func(d *side, s *step) string { return result(unix.Fchmodat(d.top, s.path, s.mode, 0)) }},
	{name: "fchmod", weight: 2, uses: 1, content: true, do: func(d *side, s *step) string { return result(unix.Fchmod(d.fds[s.slot], s.mode)) }},
	{name: "chown", weight: 4, paths: 1, content: true, flags: []int{0, unix.AT_SYMLINK_NOFOLLOW}, do: func(d *side, s *step) string {
		uid, gid := s.owner()
		return result(unix.Fchownat(d.top, s.path, uid, gid, s.flags))
	}},
	{name: "fchown", weight: 2, uses: 1, content: true, do: func(d *side, s *step) string {
		uid, gid := s.owner()
		return result(unix.Fchown(d.fds[s.slot], uid, gid))
	}},
	{name: "utimens", weight: 4, paths: 1, content: true, flags: []int{0, unix.AT_SYMLINK_NOFOLLOW}, do: func(d *side, s *step) string {
		return result(unix.UtimesNanoAt(d.top, s.path, s.times(), s.flags))
	}},
	{name: "truncate", weight: 4, paths: 1, content: true, do: func(d *side, s *step) string {
		// By way of a descriptor that only names the file: truncate has no form for a directory's one.
		fd, err := unix.Openat(d.top, s.path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		return result(unix.Truncate(procPath(fd), s.off))
	}},
	{name: "setxattr", weight: 4, paths: 1, flags: []int{0, unix.XATTR_CREATE, unix.XATTR_REPLACE}, do: onPath(func(path string, s *step) string {
		b := bytesOf(s)
		return result(unix.Setxattr(path, s.name, b[:min(len(b), int(s.seed%300))], s.flags))
	})},
	{name: "getxattr", weight: 3, paths: 1, do: onPath(func(path string, s *step) string {
		b := make([]byte, []int{0, 10, 1000}[s.seed%3])
		n, err := unix.Getxattr(path, s.name, b)
		return result(err, n, b[:min(max(n, 0), len(b))])
	})},
	{name: "removexattr", weight: 2, paths: 1, do: onPath(func(path string, s *step) string { return result(unix.Removexattr(path, s.name)) })},
	{name: "listxattr", weight: 2, paths: 1, do: onPath(func(path string, s *step) string {
		b := make([]byte, []int{0, 10, 4000}[s.seed%3])
		n, err := unix.Listxattr(path, b)
		names := strings.Split(string(b[:min(max(n, 0), len(b))]), "\x00")
		slices.Sort(names)
		return result(err, n, names)
	})},
}

// onPath calls fn with the path of the step's file, links not followed.
func onPath(fn func(path string, s *step) string) func(d *side, s *step) string {
	return func(d *side, s *step) string {
		fd, err := unix.Openat(d.top, s.path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		return fn(procPath(fd), s)
	}
}

// owner is who gets a file; -1 changes nothing. A chown that changes nothing is left
// out: on ext4 it clears the setuid bit, and a mount gets no request for it.
func (s *step) owner() (uid, gid int) {
	uid, gid = []int{-1, 0, 1000, 1001, -1}[s.seed%5], []int{-1, 0, 100, 200, 1002}[s.seed/5%5]
	if uid < 0 && gid < 0 {
		uid = 0
	}
	return uid, gid
}

// times are two that a step sets.
func (s *step) times() []unix.Timespec {
	when := func(n uint64) unix.Timespec {
		switch n % 6 {
		case 0:
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		case 1:
			return unix.Timespec{Nsec: unix.UTIME_NOW}
		case 2:
			return unix.Timespec{Sec: -int64(n % 1e9), Nsec: int64(n % 1e9)}
		case 3:
			return unix.Timespec{Sec: 5e9 + int64(n%1e9), Nsec: 999_999_999}
		}
		return unix.Timespec{Sec: 1e9 + int64(n%1e8), Nsec: int64(n % 1e9)}
	}
	return []unix.Timespec{when(s.seed / 7), when(s.seed)}
}
