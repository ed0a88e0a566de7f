package bufpool

import "golang.org/x/sys/unix"

// mapMemory returns n bytes of fresh, page-aligned memory outside of the heap.
func mapMemory(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	if n >= 1<<20 {
		// Huge pages make for fewer faults and fewer segments in a direct write.
		// Where the kernel has none the advice is refused, and nothing is lost.
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return mem, nil
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem[:cap(mem)]) }
