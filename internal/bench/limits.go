package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/internal/vfs"
)

const (
	// limitBlock and limitInFlight are the parameters of the disk measurement.
	limitBlock    = 1 << 20
	limitInFlight = 8
)

// Disk measures the file system of dir with O_DIRECT, 1 MiB requests, 8 in
// flight over files preallocated files. The bytes are incompressible, total in
// all, and synced at the end of a write. It returns bytes per second for
// writing and for reading the same bytes back.
func Disk(ctx context.Context, dir string, files int, total int64) (write, read float64, err error) {
	dir = filepath.Join(dir, "limit-disk")
	fs := vfs.OS{}
	if err := fs.MkdirAll(dir); err != nil {
		return 0, 0, err
	}
	defer fs.RemoveAll(dir)
	each := total / int64(files) / limitBlock * limitBlock
	if each == 0 {
		return 0, 0, fmt.Errorf("bench: %d bytes are too few for %d files", total, files)
	}
	opened := make([]vfs.File, files)
	for i := range opened {
		f, err := fs.Open(filepath.Join(dir, fmt.Sprintf("f%d", i)), vfs.Create|vfs.Truncate|vfs.Direct)
		if err != nil {
			return 0, 0, err
		}
		defer f.Close()
		if err := f.Allocate(0, each); err != nil {
			return 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
		opened[i] = f
	}
	pattern, err := alignedRandom(limitInFlight * limitBlock)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Munmap(pattern)
	moved := each * int64(files)
	d, err := sweep(ctx, opened, each, func(f vfs.File, worker int, off int64) error {
		_, err := f.WriteAt(pattern[worker*limitBlock:(worker+1)*limitBlock], off)
		return err
	}, func(f vfs.File) error { return f.Sync() })
	if err != nil {
		return 0, 0, err
	}
	write = perSecond(float64(moved), d)
	d, err = sweep(ctx, opened, each, func(f vfs.File, worker int, off int64) error {
		_, err := f.ReadAt(pattern[worker*limitBlock:(worker+1)*limitBlock], off)
		return err
	}, nil)
	if err != nil {
		return 0, 0, err
	}
	return write, perSecond(float64(moved), d), nil
}

// sweep runs op over every block of every file, limitInFlight at a time, with the
// files in turn, then end on each file. It returns the duration.
func sweep(ctx context.Context, files []vfs.File, each int64, op func(f vfs.File, worker int, off int64) error, end func(vfs.File) error) (time.Duration, error) {
	var next atomic.Int64
	blocks := each / limitBlock * int64(len(files))
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for w := range limitInFlight {
		g.Go(func() error {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= blocks {
					return nil
				}
				f := files[i%int64(len(files))]
				if err := op(f, w, i/int64(len(files))*limitBlock); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	if end != nil {
		var e errgroup.Group
		for _, f := range files {
			e.Go(func() error { return end(f) })
		}
		if err := e.Wait(); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// alignedRandom maps n bytes of page-aligned, incompressible memory. The caller
// unmaps it.
func alignedRandom(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	fillRandom(b, 1)
	return b, nil
}

// fillRandom fills b with bytes that do not compress, the same for a seed.
func fillRandom(b []byte, seed uint64) {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	c := rand.NewChaCha8(key)
	_, _ = c.Read(b) // never fails
}
