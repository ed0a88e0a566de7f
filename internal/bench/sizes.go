package bench

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

const (
	// memoryBeside is the memory of a chunkserver that is not for what a benchmark has
	// in it: for what is under way.
	memoryBeside = 256 << 20
	// maxInMemory bounds what the benchmarks of the memory tier move.
	maxInMemory = 8 << 30
	// memoryHosts is how many chunkservers share that: one for each chunk of a stripe
	// of 4+2, so that each has a quarter of the file bytes, with parity.
	memoryHosts = 6
)

// MemoryFor returns how much memory each of six chunkservers needs to hold bytes in
// stripes of 4+2, of which three quarters may be dirty while the devices take the rest;
// all of them together get half of what this machine has left at the most.
func MemoryFor(bytes int64) (each int64, err error) {
	left, err := availableMemory()
	if err != nil {
		return 0, err
	}
	each = min(min(bytes, maxInMemory)/4+memoryBeside, left/2/memoryHosts)
	if each <= memoryBeside {
		return 0, fmt.Errorf("bench: %d bytes of memory are left on this machine: too few for chunkservers that keep what is measured in memory", left)
	}
	return each / (1 << 20) * (1 << 20), nil
}

// MemoryHolds returns how many file bytes chunkservers hold with so much memory each.
func MemoryHolds(each int64) int64 { return (each - memoryBeside) * 4 }

// availableMemory returns what processes may still take, in bytes.
func availableMemory() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var kb int64
		if line, ok := strings.CutPrefix(sc.Text(), "MemAvailable:"); ok {
			if _, err := fmt.Sscan(line, &kb); err != nil {
				return 0, err
			}
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("bench: /proc/meminfo does not say how much memory is available")
}
