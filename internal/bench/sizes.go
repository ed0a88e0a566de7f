package bench

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

const (
	// memoryBeside is the memory of a chunkserver that does not hold the
	// benchmark's data: it is for data in flight.
	memoryBeside = 256 << 20
	// maxInMemory limits the bytes of the benchmarks of the memory tier.
	maxInMemory = 8 << 30
	// memoryHosts is how many chunkservers share them. There is one for each chunk
	// of a 4+2 stripe, so each has a quarter of the file bytes, with parity.
	memoryHosts = 6
)

// MemoryFor returns how much memory each of six chunkservers needs to hold bytes in
// stripes of 4+2. Three quarters of it may be dirty while the devices write the
// rest. All together get at most half of this machine's free memory.
func MemoryFor(bytes int64) (each int64, err error) {
	left, err := availableMemory()
	if err != nil {
		return 0, err
	}
	each = min(min(bytes, maxInMemory)/4+memoryBeside, left/2/memoryHosts)
	if each <= memoryBeside {
		return 0, fmt.Errorf("bench: only %d bytes of memory are free on this machine: too few for chunkservers that keep the measured bytes in memory", left)
	}
	return each / (1 << 20) * (1 << 20), nil
}

// MemoryHolds returns how many file bytes chunkservers with so much memory each
// hold.
func MemoryHolds(each int64) int64 { return (each - memoryBeside) * 4 }

// availableMemory returns how much memory processes may still allocate, in bytes.
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
	return 0, fmt.Errorf("bench: /proc/meminfo does not report the available memory")
}
