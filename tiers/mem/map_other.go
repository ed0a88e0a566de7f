//go:build !linux

package mem

import (
	"errors"
	"unsafe"

	"github.com/morainefs/moraine"
)

const maxNode = 0

// mapArena returns aligned memory of the heap. This suffices for tests on systems
// on which no chunkserver runs.
func mapArena(cfg ArenaConfig) ([]byte, error) {
	if cfg.Path != "" {
		return nil, errors.New("memory at a path needs Linux")
	}
	mem := make([]byte, cfg.Bytes+block)
	skip := -int64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (block - 1)
	return mem[skip : skip+cfg.Bytes : skip+cfg.Bytes], nil
}

func unmapArena([]byte) error { return nil }

func kindOf(error) moraine.Kind { return moraine.InvalidArgument }
