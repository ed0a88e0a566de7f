//go:build !linux

package bufpool

import (
	"unsafe"

	"github.com/morainefs/moraine"
)

// mapMemory returns n aligned bytes of the heap. This suffices for clients on
// systems on which no chunkserver runs.
func mapMemory(n int) ([]byte, error) {
	mem := make([]byte, n+moraine.BlockSize)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (moraine.BlockSize - 1)
	return mem[skip : skip+n : skip+n], nil
}

func unmapMemory([]byte) error { return nil }
