package mem

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
)

const (
	// maxNode is the greatest ArenaConfig.Node.
	maxNode = 1024
	// bind is MPOL_BIND of set_mempolicy(2): allocate on these nodes only.
	bind = 2
)

// mapArena maps the memory of an arena; cfg is valid.
func mapArena(cfg ArenaConfig) ([]byte, error) {
	if cfg.Prefault && cfg.Path == "" {
		if err := fits(cfg.Bytes); err != nil {
			return nil, err
		}
	}
	mem, err := mapFrom(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Node > 0 {
		if err := bindTo(mem, cfg.Node-1); err != nil {
			return nil, errors.Join(err, unmapArena(mem))
		}
	}
	if cfg.Prefault {
		if err := prefault(mem); err != nil {
			return nil, errors.Join(err, unmapArena(mem))
		}
	}
	return mem, nil
}

func mapFrom(cfg ArenaConfig) ([]byte, error) {
	if cfg.Path == "" {
		mem, err := unix.Mmap(-1, 0, int(cfg.Bytes), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err == nil {
			// With huge pages there are fewer faults, and fewer segments in a
			// direct write. If the kernel has none, it refuses the advice without
			// harm.
			_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
		}
		return mem, err
	}
	return mapPath(cfg.Path, cfg.Bytes)
}

// bindTo makes the kernel take the pages of mem from one NUMA node.
func bindTo(mem []byte, node int) error {
	var mask [maxNode/64 + 1]uint64
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), bind,
		uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*64), 0)
	if errno != 0 {
		online, _ := os.ReadFile("/sys/devices/system/node/online")
		return fmt.Errorf("bind to NUMA node %d: %w (this machine has nodes %s)", node, errno, cmp.Or(strings.TrimSpace(string(online)), "unknown to the kernel"))
	}
	return nil
}

// prefault makes the kernel find a page for every address, on all processors.
func prefault(mem []byte) error {
	const step = 64 << 20
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < len(mem); from += step {
		part := mem[from:min(from+step, len(mem))]
		g.Go(func() error {
			err := unix.Madvise(part, unix.MADV_POPULATE_WRITE)
			if errors.Is(err, unix.EINVAL) { // before Linux 5.14
				for i := 0; i < len(part); i += os.Getpagesize() {
					part[i] = 0
				}
				return nil
			}
			return err
		})
	}
	return g.Wait()
}

func unmapArena(mem []byte) error { return unix.Munmap(mem) }

// kindOf returns the kind of error for a failed mapping.
func kindOf(err error) moraine.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return moraine.NotFound
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EAGAIN), errors.Is(err, errNoRoom):
		return moraine.NoSpace
	case errors.Is(err, unix.EINVAL), errors.Is(err, errNotMemory):
		return moraine.InvalidArgument
	}
	return moraine.IOError
}
