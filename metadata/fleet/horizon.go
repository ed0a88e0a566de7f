package fleet

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// The backup horizon: chunks of a stripe that no file names any more are kept for it, since a
// backup from before names them. They are the first to go where a device becomes full: the
// horizon is shorter then, and `cluster status` says how long it is.

const (
	// keptShare is the part of a device, 1 of so many, that what is kept for backups leaves
	// free; on a small device it is keptLeast, or a quarter of it where that is less.
	keptShare = 10
	keptLeast = 1 << 30
)

// keptReserve is how much of a device is free before anything is kept for backups on it.
func keptReserve(capacity uint64) uint64 {
	return max(capacity/keptShare, min(capacity/4, keptLeast))
}

// overfull is by how many bytes a device is too full to keep anything for backups, as its
// host said last, without what was deleted since.
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

// sharedDiskStep is how many bytes a device gives back with a heartbeat while the disk that
// it shares with the metadata is nearly full.
const sharedDiskStep = 64 << 20

// Horizon is what one leadership knows of the backup horizon.
type Horizon struct {
	*lead.Term
	cfg      Config
	topology *topology
	leader   Leader
}

// keptDeletions returns at most limit deletions for a device, of what was kept for backups:
// what has been dead for the horizon, and, where the device, or the metadata's disk that it lies on, becomes
// full, as much as it needs of what has been dead for the grace, oldest first.
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

// CountKept says what is kept for backups, and for how long all of it is.
func (k *Horizon) CountKept(r kvtx.Reader, n kvtx.Counters, reply *wire.ClusterReply) error {
	reply.PendingBytes = n.PendingBytes
	if k.cfg.BackupHorizon <= 0 {
		return nil // what is dead waits for the grace alone
	}
	reply.KeptBytes, reply.PendingBytes = n.KeptBytes, n.PendingBytes-n.KeptBytes
	horizon, err := k.horizonNow(r, n.ClusterTime)
	reply.BackupHorizonMillis, reply.BackupHorizonNowMillis = uint64(k.cfg.BackupHorizon.Milliseconds()), horizon
	return err
}

// horizonNow is the backup horizon, in milliseconds, or less where a device gave back what
// died since.
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

// MeasureKept keeps the gauges of what is kept for backups.
func (k *Horizon) MeasureKept() error {
	reply := &wire.ClusterReply{}
	err := k.Store.View(func(r kvtx.Reader, _ uint64) error {
		n, err := kvtx.ReadCounters(k.Machine.View(r))
		if err != nil {
			return err
		}
		return k.CountKept(r, n, reply)
	})
	k.Metrics.KeptBytes.Set(float64(reply.KeptBytes))
	k.Metrics.PendingBytes.Set(float64(reply.PendingBytes))
	k.Metrics.BackupHorizon.Set((time.Duration(reply.BackupHorizonNowMillis) * time.Millisecond).Seconds())
	return err
}
