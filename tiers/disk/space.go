package disk

import (
	"errors"
	"io/fs"
	"path"
	"sync"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
)

// spaceUsed returns the bytes of records: live, dead and not yet reclaimed, and
// being written.
func (d *Device) spaceUsed() int64 {
	d.app.mu.Lock()
	pending := d.app.pending
	d.app.mu.Unlock()
	return d.liveBytes.Load() + d.deadBytes.Load() + pending
}

// Usage implements tiers.Tier. The capacity is the configured one, or the size of
// the file system. It never exceeds the used space plus the free space, so it falls
// when other programs fill the same file system.
func (d *Device) Usage() tiers.Usage {
	used := uint64(d.spaceUsed())
	u := tiers.Usage{UsedBytes: used, Chunks: uint64(d.chunks.Load()), CapacityBytes: d.cfg.CapacityBytes}
	space, err := d.deps.FS.Usage(d.cfg.Dir)
	if err != nil {
		return u
	}
	d.app.mu.Lock()
	if s := d.app.active; s != nil {
		space.Free += uint64(s.size - s.end)
	}
	d.app.mu.Unlock()
	if u.CapacityBytes == 0 {
		u.CapacityBytes = space.Total
	}
	u.CapacityBytes = min(u.CapacityBytes, used+space.Free)
	return u
}

// ballast is a file that only takes space. The device removes it when the file
// system is full, so that it can still write tombstones and the index. The device
// makes it again when space is free.
type ballast struct {
	mu   sync.Mutex // held across the I/O, which nothing else waits for
	kept bool
}

// keepBallast makes the ballast if there is ample free space.
func (d *Device) keepBallast() error {
	b := &d.ballast
	size := d.cfg.BallastBytes / block * block
	if size <= 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept {
		return nil
	}
	name := path.Join(d.cfg.Dir, ballastFile)
	info, err := d.deps.FS.Stat(name)
	switch {
	case err == nil && info.Size == size:
		b.kept = true
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if u, err := d.deps.FS.Usage(d.cfg.Dir); err != nil || u.Free < 4*uint64(size) || u.Free < u.Total/20 {
		return err
	}
	f, err := d.deps.FS.Open(name, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	err = f.Allocate(0, size)
	if err = errors.Join(err, f.Close()); err == nil {
		b.kept = true
		return nil
	}
	if removeErr := d.deps.FS.Remove(name); removeErr != nil || !isNoSpace(err) {
		return errors.Join(err, removeErr)
	}
	return nil
}

// drop removes the ballast, and reports whether it existed.
func (b *ballast) drop(d *Device) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.kept {
		return false
	}
	b.kept = false
	if err := d.deps.FS.Remove(path.Join(d.cfg.Dir, ballastFile)); err != nil {
		_ = d.fail("disk.ballast", err)
		return false
	}
	d.log.Warn("ballast removed")
	return true
}
