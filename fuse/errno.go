package fuse

import (
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
)

// errnos maps each kind of error to the errno of a system call. A wait that
// exceeded its time is ETIMEDOUT. Damaged or lost data, and internal errors, are
// EIO.
var errnos = map[moraine.Kind]syscall.Errno{
	moraine.Internal:         syscall.EIO,
	moraine.InvalidArgument:  syscall.EINVAL,
	moraine.NotFound:         syscall.ENOENT,
	moraine.Exists:           syscall.EEXIST,
	moraine.NotDirectory:     syscall.ENOTDIR,
	moraine.IsDirectory:      syscall.EISDIR,
	moraine.NotEmpty:         syscall.ENOTEMPTY,
	moraine.PermissionDenied: syscall.EACCES,
	moraine.Unauthenticated:  syscall.EACCES,
	moraine.ReadOnly:         syscall.EROFS,
	moraine.CrossTenant:      syscall.EXDEV,
	moraine.CrossPartition:   syscall.EXDEV,
	moraine.NameTooLong:      syscall.ENAMETOOLONG,
	moraine.TooLarge:         syscall.EFBIG,
	moraine.NoSpace:          syscall.ENOSPC,
	moraine.QuotaExceeded:    syscall.EDQUOT,
	moraine.Stale:            syscall.ESTALE,
	moraine.SessionExpired:   syscall.EIO,
	moraine.NotLeader:        syscall.ETIMEDOUT,
	moraine.Misrouted:        syscall.ETIMEDOUT,
	moraine.Unavailable:      syscall.ETIMEDOUT,
	moraine.Timeout:          syscall.ETIMEDOUT,
	moraine.Canceled:         syscall.EINTR,
	moraine.Corrupt:          syscall.EIO,
	moraine.Lost:             syscall.EIO,
	moraine.Busy:             syscall.EBUSY,
	moraine.Fenced:           syscall.EIO,
	moraine.Aborted:          syscall.EIO,
	moraine.Incomplete:       syscall.EIO,
	moraine.Conflict:         syscall.EIO,
	moraine.Unimplemented:    syscall.EOPNOTSUPP,
	moraine.WrongCluster:     syscall.EIO,
	moraine.NewerFormat:      syscall.EIO,
	moraine.IOError:          syscall.EIO,
	moraine.NoAttribute:      syscall.ENODATA,
	moraine.Immutable:        syscall.EPERM,
}

// status is the answer for err.
func status(err error) gofuse.Status {
	if err == nil {
		return gofuse.OK
	}
	if errno, ok := errnos[moraine.KindOf(err)]; ok {
		return gofuse.Status(errno)
	}
	return gofuse.EIO
}

// nodeStatus is status for a request about a node that the kernel knows by number.
// A missing node is ESTALE, after which the kernel looks its name up again.
func nodeStatus(err error) gofuse.Status {
	if err != nil && moraine.KindOf(err) == moraine.NotFound {
		return gofuse.Status(syscall.ESTALE)
	}
	return status(err)
}
