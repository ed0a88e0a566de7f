package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// What a new leader does not know yet. The state says which hosts and devices exist. Within a
// heartbeat interval the hosts report that they are up, and how full they are.

// holds reports whether stripes may have chunks on the device.
func holds(d *wire.Device) bool { return d.State == DeviceIn || d.State == deviceDraining }

// working returns the devices that serve, by their hosts' reports, on hosts that are not silent.
// unseen are the hosts that count as up without a report; their devices are not included.
func (t *topology) working(now time.Time) (devices map[uint32]bool, unseen []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	devices = make(map[uint32]bool)
	for id, h := range t.hosts {
		if !h.alive || now.Sub(h.lastSeen) > t.suspect {
			continue
		}
		if !h.spoke {
			if slices.ContainsFunc(h.record.Devices, holds) {
				unseen = append(unseen, id)
			}
			continue
		}
		for _, d := range h.record.Devices {
			if holds(d) && !h.usage[d.Id].failed {
				devices[d.Id] = true
			}
		}
	}
	slices.Sort(unseen)
	return devices, unseen
}

// fillKnown counts the serving devices on hosts that count as up. One count is
// of those whose hosts reported how full they are, one of those whose hosts
// have not reported at all. A device that registered just now, and may be new,
// counts as neither.
func (t *topology) fillKnown() (known, unknown int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.hosts {
		for _, d := range h.record.Devices {
			if !h.alive || !holds(d) {
				continue
			}
			if _, ok := h.usage[d.Id]; ok {
				known++
			} else if !h.spoke {
				unknown++
			}
		}
	}
	return known, unknown
}

// meanFill returns the mean fill of the devices with a known one; 0 if there is none. The caller
// holds mu, or has exclusive use of the topology.
func (t *topology) meanFill() float64 {
	var used, capacity float64
	for _, h := range t.hosts {
		for _, d := range h.record.Devices {
			if u, ok := h.usage[d.Id]; ok && holds(d) {
				used, capacity = used+float64(min(u.used, u.capacity)), capacity+float64(u.capacity)
			}
		}
	}
	if capacity == 0 {
		return 0
	}
	return used / capacity
}

// guess assumes that a device without a report is as full as the others. Treating it as empty would
// show room that does not exist and attract all new chunks.
func (v *View) guess(d *wire.Device) {
	v.guessed[d.Id] = true
	d.Used = min(uint64(v.mean*float64(d.Capacity)), d.Capacity)
}

// guessedRoom is the smallest part of a device, 1/guessedRoom, that placement assumes to be free
// until the host reports. A write must not fail because of a guess. If the device is full, it
// refuses the write.
const guessedRoom = 16

// free returns the free bytes of a device for placement.
func (v *View) free(d *wire.Device) uint64 {
	free := d.Capacity - min(d.Used, d.Capacity)
	if v.guessed[d.Id] {
		free = max(free, d.Capacity/guessedRoom)
	}
	return free
}

// refresh publishes first reports of hosts at once. Later reports wait for the next tick.
func (t *topology) refresh() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first {
		t.publish()
	}
}

const (
	// tellWait is how long after its election a leader waits for the last hosts' reports before it
	// answers how full the devices are. If no host has reported, it waits until they count as down.
	tellWait = 2 * time.Second
	tellPoll = 20 * time.Millisecond
)

// AwaitFill waits, in the first seconds of a leadership, until the fill of the devices is known.
func (f *Fleet) AwaitFill(ctx context.Context) error {
	for {
		known, unknown := f.Topology.fillKnown()
		wait := tellWait
		if known == 0 {
			wait = f.cfg.Suspect + 2*lead.TickEvery
		}
		left := wait - f.Clock.Since(f.Began)
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, deadline.Sub(f.Clock.Now())-lead.ReplyTime)
		}
		if unknown == 0 || left <= 0 {
			f.Topology.refresh()
			return nil
		}
		if err := f.Await(ctx, nil, min(left, tellPoll)); err != nil {
			return err
		}
	}
}

const (
	// lateHosts is how long the leader waits for hosts that a restored state does not know. They
	// register with their next heartbeats.
	lateHosts = 30 * time.Second
)

// ReportsAwaited reports whether the content of some device is unknown since the metadata was
// restored. Nothing is deleted meanwhile.
func (f *Fleet) ReportsAwaited(r kvtx.Reader) (bool, error) {
	if f.Cluster.Incarnation <= 1 || f.allReported.Load() {
		return false, nil
	}
	if f.Clock.Since(f.Began) < lateHosts {
		return true, nil
	}
	n, err := fleet.Unreported(f.Machine.View(r))
	if err == nil && n == 0 {
		f.allReported.Store(true) // devices that register later are not waited for
	}
	return n > 0, err
}
