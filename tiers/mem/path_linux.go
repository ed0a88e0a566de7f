package mem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/internal/bufpool"
)

// hugePage is what a DAX device is mapped in multiples of.
const hugePage = 2 << 20

// errNotMemory says that what lies at a path is kept on a disk.
var errNotMemory = errors.New("its pages would be written to a disk: name a directory of hugetlbfs, of tmpfs or of a file system mounted with dax, or a DAX device")

// mapPath maps at most size bytes of a DAX device, or of a file without a name in a
// directory. What is in it is nobody's after the process: chunks in memory are worth their
// boot epoch alone, wherever the memory is.
func mapPath(path string, size int64) ([]byte, error) {
	fd, unit, err := openPath(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // the mapping keeps what it needs
	// Down, since a limit is one: and munmap takes whole pages, however large, or none.
	whole := size / unit * unit
	if whole < bufpool.MaxSize {
		return nil, fmt.Errorf("%d bytes are less than an arena takes, in pages of %d: %w", size, unit, unix.EINVAL)
	}
	if err := reserve(fd, whole); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, int(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// openPath opens what memory is mapped from, which comes in units of so many bytes.
func openPath(path string) (fd int, unit int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return -1, 0, err
	}
	if !info.IsDir() {
		if info.Mode()&fs.ModeCharDevice == 0 {
			return -1, 0, fmt.Errorf("%s is neither a directory nor a device: %w", path, unix.EINVAL)
		}
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		return fd, hugePage, err
	}
	f, err := os.CreateTemp(path, "moraine-arena-*")
	if err != nil {
		return -1, 0, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return -1, 0, err
	}
	if unit, err = memoryUnit(f); err != nil {
		return -1, 0, err
	}
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return fd, unit, err
}

// memoryUnit returns the page size of a file that lies in memory: errNotMemory where it
// does not.
func memoryUnit(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	switch st.Type {
	case unix.HUGETLBFS_MAGIC:
		return st.Bsize, nil
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return block, nil
	}
	var x unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &x); err != nil || x.Attributes&unix.STATX_ATTR_DAX == 0 {
		return 0, errNotMemory
	}
	return block, nil
}

// reserve makes a file as long as it is to be: with less than that, a page would be a SIGBUS
// one day. A device is.
func reserve(fd int, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return err
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return err
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}
