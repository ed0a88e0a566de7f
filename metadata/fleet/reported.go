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

// What a leader has not heard yet. It knows from the state which hosts and devices there
// are, and hears within a heartbeat interval which of them are there and how full they are.

// holds reports whether a device is one that stripes may have chunks on.
func holds(d *wire.Device) bool { return d.State == DeviceIn || d.State == deviceDraining }

// working returns the devices that serve, as far as their hosts say, on hosts that are not
// silent, and the hosts that are taken for alive without having been heard: their devices
// are not among them.
func (t *topology) working(now time.Time) (devices map[uint32]bool, unheard []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	devices = make(map[uint32]bool)
	for id, h := range t.hosts {
		if !h.alive || now.Sub(h.lastSeen) > t.suspect {
			continue
		}
		if !h.spoke {
			if slices.ContainsFunc(h.record.Devices, holds) {
				unheard = append(unheard, id)
			}
			continue
		}
		for _, d := range h.record.Devices {
			if holds(d) && !h.usage[d.Id].failed {
				devices[d.Id] = true
			}
		}
	}
	slices.Sort(unheard)
	return devices, unheard
}

// fillKnown counts the devices that serve on hosts which are taken for alive: those whose hosts
// said how full they are, and those whose hosts have not spoken at all. One that registered
// a moment ago, and may be new, is neither.
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

// meanFill is the part that is used of the devices of which that is known, 0 where it is
// of none. The caller holds mu, or has the topology for itself.
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

// guess has a device that nobody has told of be as full as the others. To take it for
// empty would show room that is not there, and draw all new chunks to it.
func (v *View) guess(d *wire.Device) {
	v.guessed[d.Id] = true
	d.Used = min(uint64(v.mean*float64(d.Capacity)), d.Capacity)
}

// guessedRoom is the least part of a device, 1/guessedRoom, that placement takes for free
// until its host has said how full it is: a write must not fail for a guess, and a device
// that is full refuses by itself.
const guessedRoom = 16

// free is how many bytes of a device are free, to placement.
func (v *View) free(d *wire.Device) uint64 {
	free := d.Capacity - min(d.Used, d.Capacity)
	if v.guessed[d.Id] {
		free = max(free, d.Capacity/guessedRoom)
	}
	return free
}

// refresh publishes what hosts said for the first time, which otherwise waits for the next
// tick, as all that they say again does.
func (t *topology) refresh() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first {
		t.publish()
	}
}

const (
	// tellWait is for how long after its election a leader waits for the last hosts to say
	// how full they are before it tells others. Where it has heard nobody at all it waits
	// until they count as down.
	tellWait = 2 * time.Second
	tellPoll = 20 * time.Millisecond
)

// AwaitFill waits, in the first seconds of a leadership, until it is known how full the
// devices are.
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
	// lateHosts is for how long hosts are waited for that the restored state does not know:
	// they register with their next heartbeats.
	lateHosts = 30 * time.Second
)

// ReportsAwaited reports whether it is not known yet what some device holds, since the
// metadata was restored: nothing is deleted until it is.
func (f *Fleet) ReportsAwaited(r kvtx.Reader) (bool, error) {
	if f.Cluster.Incarnation <= 1 || f.allReported.Load() {
		return false, nil
	}
	if f.Clock.Since(f.Began) < lateHosts {
		return true, nil
	}
	n, err := fleet.Unreported(f.Machine.View(r))
	if err == nil && n == 0 {
		f.allReported.Store(true) // Devices that register later are not waited for
	}
	return n > 0, err
}
