package twomounts_test

import "golang.org/x/sys/unix"

// lockCalls lock files through open files. The locks of fcntl that belong to a
// process are left out: one process has both mounts.
var lockCalls = []operation{
	{name: "lock range", weight: 8, uses: 1, content: true, locks: true, flags: lockTypes, do: func(d *side, s *step) string {
		return result(unix.FcntlFlock(uintptr(d.fds[s.slot]), unix.F_OFD_SETLK, s.lock()))
	}},
	{name: "get lock", weight: 4, uses: 1, content: true, flags: lockTypes[1:], do: getLock, check: sameLock},
	{name: "flock", weight: 5, uses: 1, content: true, locks: true, flags: []int{unix.LOCK_SH, unix.LOCK_EX, unix.LOCK_UN}, do: func(d *side, s *step) string {
		return result(unix.Flock(d.fds[s.slot], s.flags|unix.LOCK_NB))
	}},
}

var lockTypes = []int{unix.F_UNLCK, unix.F_RDLCK, unix.F_WRLCK, unix.F_WRLCK}

// lock is the range that a step locks; length 0 is up to the end.
func (s *step) lock() *unix.Flock_t {
	return &unix.Flock_t{Type: int16(s.flags), Start: s.off % 1000, Len: int64(s.n % 1000)}
}

func getLock(d *side, s *step) string {
	l := s.lock()
	if err := unix.FcntlFlock(uintptr(d.fds[s.slot]), unix.F_OFD_GETLK, l); err != nil {
		return result(err)
	}
	// Which one of several locks is in the way is up to the file system.
	return result(nil, "locked: ", l.Type != unix.F_UNLCK)
}

// sameLock compares whether a lock is in the way. A mount learns of the last close of
// a file, which frees locks, after the close has returned.
func sameLock(mount, ext4 *side, s *step) string {
	want, got := getLock(ext4, s), getLock(mount, s)
	for try := 0; got != want && try < 1000; try++ {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
		got = getLock(mount, s)
	}
	if got != want {
		return mount.name + ": " + got + ", ext4: " + want
	}
	return ""
}
