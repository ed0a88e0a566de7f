package fleet

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// The backup horizon: devices keep chunks of a stripe without files for it, because an earlier
// backup refers to the stripe. If a device is getting full, these chunks are deleted first. The
// horizon is then shorter, and `cluster status` shows its length.

const (
	// keptShare is the part of a device, 1 in so many, that chunks kept for backups must leave
	// free. On a small device it is keptLeast, or a quarter of the device if that is less.
	keptShare = 10
	keptLeast = 1 << 30
)

// keptReserve returns the bytes that chunks kept for backups must leave free on a device.
func keptReserve(capacity uint64) uint64 {
	return max(capacity/keptShare, min(capacity/4, keptLeast))
}

// overfull returns by how many bytes a device is too full to keep chunks for
// backups. It uses the last report of its host, less the bytes deleted since.
func (t *topology) overfull(device uint32) uint64 {
	d := t.View().Devices[device]
	if d == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[d.Host]
	if h == nil {
		return 0
	}
	u, known := h.usage[device]
	if !known || u.capacity == 0 {
		return 0
	}
	used := u.used
	for _, f := range h.freed[device] {
		used -= min(used, f.bytes)
	}
	most := u.capacity - keptReserve(u.capacity)
	return used - min(used, most)
}

// sharedDiskStep is the number of bytes that a device frees with one heartbeat while the disk that
// it shares with the metadata is nearly full.
const sharedDiskStep = 64 << 20

// Horizon is one leadership's knowledge of the backup horizon.
type Horizon struct {
	*lead.Term
	cfg      Config
	topology *topology
	leader   Leader
}

// keptDeletions returns at most limit deletions of chunks kept for backups on a
// device. These chunks are dead for longer than the horizon. If the device or the
// metadata's disk becomes full, it adds the oldest other chunks until there is
// room. These must be dead for the grace period.
func (k *Horizon) keptDeletions(r kvtx.Reader, device uint32, now uint64, limit int) ([]*wire.Deletion, error) {
	grace := uint64(k.cfg.Grace.Milliseconds())
	horizon := max(grace, uint64(k.cfg.BackupHorizon.Milliseconds()))
	needed, atMost := k.topology.overfull(device), uint64(0)
	if k.cfg.SharesDisk && k.leader.OutOfSpace() {
		needed = max(needed, sharedDiskStep)
	}
	if needed > 0 {
		atMost = now - min(now, grace)
	}
	return fleet.KeptTombstones(k.Machine.View(r), moraine.DeviceID(device), now-min(now, horizon), atMost, needed, limit)
}

// CountKept adds to a reply how much is kept for backups, and since when all of it is.
func (k *Horizon) CountKept(r kvtx.Reader, n kvtx.Counters, reply *wire.ClusterReply) error {
	reply.PendingBytes = n.PendingBytes
	if k.cfg.BackupHorizon <= 0 {
		return nil // dead chunks wait only for the grace
	}
	reply.KeptBytes, reply.PendingBytes = n.KeptBytes, n.PendingBytes-n.KeptBytes
	horizon, err := k.horizonNow(r, n.ClusterTime)
	reply.BackupHorizonMillis, reply.BackupHorizonNowMillis = uint64(k.cfg.BackupHorizon.Milliseconds()), horizon
	return err
}

// horizonNow returns the backup horizon in milliseconds. It is shorter if a device freed chunks
// that died later.
func (k *Horizon) horizonNow(r kvtx.Reader, now uint64) (uint64, error) {
	horizon := uint64(max(k.cfg.BackupHorizon, 0).Milliseconds())
	for device := range k.topology.View().Devices {
		kept, err := fleet.KeptOn(k.Machine.View(r), moraine.DeviceID(device))
		if err != nil {
			return 0, err
		}
		if kept.Gone > 0 {
			horizon = min(horizon, now-min(now, kept.Gone))
		}
	}
	return horizon, nil
}

// MeasureKept updates the gauges of chunks kept for backups, and of content that the state keeps.
func (k *Horizon) MeasureKept() error {
	reply := &wire.ClusterReply{}
	err := k.Store.View(func(r kvtx.Reader, _ uint64) error {
		n, err := kvtx.ReadCounters(k.Machine.View(r))
		if err != nil {
			return err
		}
		k.Metrics.InlineFiles.Set(float64(n.InlineFiles))
		k.Metrics.InlineBytes.Set(float64(n.InlineBytes))
		return k.CountKept(r, n, reply)
	})
	k.Metrics.KeptBytes.Set(float64(reply.KeptBytes))
	k.Metrics.PendingBytes.Set(float64(reply.PendingBytes))
	k.Metrics.BackupHorizon.Set((time.Duration(reply.BackupHorizonNowMillis) * time.Millisecond).Seconds())
	return err
}
