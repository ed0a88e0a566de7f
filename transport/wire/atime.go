package wire

import "time"

// atimeAge is the age above which an atime is raised although the file has not changed since.
const atimeAge = 24 * time.Hour

// AtimeIsOld reports whether a read at the time read, in nanoseconds of the wall clock, raises an atime: the rule
// of relatime on Linux. Both sides use this function: a mount sends no other reads, and of those that several
// mounts send, the service records the first.
func AtimeIsOld(atime, mtime, ctime, read int64) bool {
	return read > atime && (atime <= mtime || atime <= ctime || read-atime >= int64(atimeAge))
}
