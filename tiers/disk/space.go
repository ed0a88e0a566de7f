package disk

import (
	"github.com/morainefs/moraine/tiers"
)

// spaceUsed returns the bytes of records: live, dead and not yet reclaimed, and
// being written.
func (d *Device) spaceUsed() int64 {
	d.app.mu.Lock()
	pending := d.app.pending
	d.app.mu.Unlock()
	return d.segments.liveBytes.Load() + d.segments.deadBytes.Load() + pending
}

// Usage implements tiers.Tier. The capacity is the configured one, or the size of
// the file system. It never exceeds the used space plus the free space, so it falls
// when other programs fill the same file system.
func (d *Device) Usage() tiers.Usage {
	used := uint64(d.spaceUsed())
	u := tiers.Usage{UsedBytes: used, Chunks: uint64(d.segments.chunks.Load()), CapacityBytes: d.cfg.CapacityBytes}
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
