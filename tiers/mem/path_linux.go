package mem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/internal/bufpool"
)

// hugePage is the unit in which a DAX device is mapped.
const hugePage = 2 << 20

// errNotMemory means that the file system at a path is on a disk.
var errNotMemory = errors.New("the kernel would write pages at the path to a disk: name a directory of hugetlbfs, of tmpfs or of a DAX file system, or a DAX device")

// mapPath maps at most size bytes of a DAX device, or of a file without a name in a
// directory. Its contents are worthless after the process ends: chunks in memory
// count only under their boot epoch, wherever the memory is.
func mapPath(path string, size int64) ([]byte, error) {
	fd, unit, err := openPath(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // the mapping holds its own reference
	// Round down, since size is a limit; munmap takes whole pages of any size, or
	// fails.
	whole := size / unit * unit
	if whole < bufpool.MaxSize {
		return nil, fmt.Errorf("%d bytes are too few for an arena in pages of %d: %w", size, unit, unix.EINVAL)
	}
	if err := reserve(fd, whole); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, int(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// openPath opens the source of the memory. It also returns the unit in which it is
// mapped, in bytes.
func openPath(path string) (fd int, unit int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return -1, 0, err
	}
	if !info.IsDir() {
		if info.Mode()&fs.ModeCharDevice == 0 {
			return -1, 0, fmt.Errorf("path %s is neither a directory nor a device: %w", path, unix.EINVAL)
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

// memoryUnit returns the page size of a file in memory, or errNotMemory if the file
// is on a disk.
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

// reserve allocates the whole file. Without that, a missing page would later cause
// a SIGBUS. A device needs no reservation.
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
