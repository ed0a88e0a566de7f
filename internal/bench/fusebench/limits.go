package fusebench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// limit is which of the limits a row has beside it.
type limit int

const (
	noLimit limit = iota
	diskWrite
	diskRead
	memcpy
	memcpyBlocks
	randomRead
	randomWrite
)

// limits are what the machine can do, as measured in this run.
type limits struct {
	write, read             float64 // bytes a second of the disk
	randomRead, randomWrite float64 // blocks of 4 KiB a second of the disk
	memcpy                  float64 // bytes a second
}

// limitDevices is how many files the disk's sequential limit is measured with: a cluster on one
// machine has as many devices.
const limitDevices = 6

// measureLimits measures those that the chosen rows have beside them. The better one of before and
// after counts.
func (r *run) measureLimits(ctx context.Context, chosen []choice, when string) error {
	has := func(of ...limit) bool {
		return slices.ContainsFunc(chosen, func(c choice) bool { return c.reported && slices.Contains(of, c.limit) })
	}
	l := &r.limits
	if has(diskWrite, diskRead) {
		r.Progress("the disk, %s", when)
		write, read, err := r.Disk(ctx, r.Dir, limitDevices, r.Size)
		if err != nil {
			return err
		}
		l.write, l.read = max(l.write, write), max(l.read, read)
	}
	if has(memcpy, memcpyBlocks) {
		l.memcpy = max(l.memcpy, copyRate())
	}
	if has(randomRead, randomWrite) {
		r.Progress("random blocks of the disk, %s", when)
		return r.randomLimits(ctx)
	}
	return nil
}

// randomLimits measures the disk with the same jobs of fio, without the page cache.
func (r *run) randomLimits(ctx context.Context) error {
	file := filepath.Join(r.Dir, "moraine-bench-random")
	defer os.Remove(file)
	if _, err := fio(ctx, file, r.Size, "--rw=write", "--bs=1M", "--end_fsync=1", "--direct=1"); err != nil {
		return err
	}
	read, err := fio(ctx, file, r.Size, append(randomArgs("randread", r.Config), "--direct=1")...)
	if err != nil {
		return err
	}
	write, err := fio(ctx, file, r.Size, append(randomArgs("randwrite", r.Config), "--direct=1", "--end_fsync=1")...)
	r.limits.randomRead = max(r.limits.randomRead, read.rate(false))
	r.limits.randomWrite = max(r.limits.randomWrite, write.rate(false))
	return err
}

// copyRate returns the bytes a second that one goroutine copies. The buffers are larger than the
// processor's caches.
func copyRate() (best float64) {
	from, to := make([]byte, 128<<20), make([]byte, 128<<20)
	for i := 0; i < len(from); i += 4096 {
		from[i] = 1 // a page that was never written is not in memory
	}
	for range 4 { // the first fills the pages of to
		start := time.Now()
		copy(to, from)
		best = max(best, float64(len(to))/time.Since(start).Seconds())
	}
	return best
}

// of returns a limit for a target, in the unit of its rows, and its name.
func (l limits) of(kind limit, t Target) (value float64, name string) {
	switch kind {
	case diskWrite:
		if t.Redundancy > 1 {
			return l.write / t.Redundancy / 1e6, fmt.Sprintf("disk/%.3g", t.Redundancy)
		}
		return l.write / 1e6, "disk"
	case diskRead:
		return l.read / 1e6, "disk"
	case memcpy:
		return l.memcpy / 1e6, "memcpy"
	case memcpyBlocks:
		return l.memcpy / blockSize, "memcpy"
	case randomRead:
		return l.randomRead, "disk"
	case randomWrite:
		return l.randomWrite, "disk"
	}
	return 0, ""
}

// blockSize is the length of a random read or write.
const blockSize = 4 << 10
