package bufpool

import "golang.org/x/sys/unix"

// mapMemory returns n bytes of fresh, page-aligned memory outside of the heap.
func mapMemory(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	if n >= 1<<20 {
		// With huge pages there are fewer faults, and fewer segments in a direct
		// write. If the kernel has none, it refuses the advice without harm.
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return mem, nil
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem[:cap(mem)]) }
