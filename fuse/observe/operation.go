package observe

// operation is a kind of request.
type operation int

const (
	opLookup operation = iota
	opGetAttr
	opSetAttr
	opMknod
	opMkdir
	opUnlink
	opRmdir
	opRename
	opLink
	opSymlink
	opReadlink
	opGetXAttr
	opListXAttr
	opSetXAttr
	opRemoveXAttr
	opCreate
	opTmpfile
	opOpen
	opRead
	opLseek
	opGetLk
	opSetLk
	opSetLkw
	opRelease
	opWrite
	opCopyRange
	opIoctl
	opFlush
	opFsync
	opFallocate
	opOpenDir
	opReadDir
	opReadDirPlus
	opReleaseDir
	opFsyncDir
	opStatFs
	opStatx
	opAccess

	operations // how many
)

var operationNames = [operations]string{"lookup", "getattr", "setattr", "mknod", "mkdir", "unlink", "rmdir", "rename", "link",
	"symlink", "readlink", "getxattr", "listxattr", "setxattr", "removexattr", "create", "tmpfile", "open", "read", "lseek",
	"getlk", "setlk", "setlkw", "release", "write", "copy_file_range", "ioctl", "flush", "fsync", "fallocate", "opendir",
	"readdir", "readdirplus", "releasedir", "fsyncdir", "statfs", "statx", "access"}

// String implements fmt.Stringer: the name in metrics and logs.
func (o operation) String() string { return operationNames[o] }
