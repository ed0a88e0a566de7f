package repair

import (
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	statefleet "github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxWaits bounds the stripes of the repair queue that are counted by what they wait
	// for, maxPlans those of them for which it is found out why nothing moves.
	maxWaits, maxPlans = 4096, 512
	// waitsAge is how old such a count may be that is told again, waitsRetry after how long
	// one that failed is tried again, which is logged.
	waitsAge, waitsRetry = time.Second, time.Minute
)

// repairWaits is the last count of what the repair queue is of.
type repairWaits struct {
	mu    sync.Mutex
	until time.Time         // it is told again
	count *wire.RepairWaits // nil where it failed
}

// waitsNow says of what the repair queue is, and why what does not move waits; nil where
// the queue is empty, or cannot be looked through: that is logged, for how full the cluster
// is, which is asked for at the same time, must be told all the same.
func (q *Queue) waitsNow(r kvtx.Reader, queued uint64) *wire.RepairWaits {
	if queued == 0 {
		return nil
	}
	w := &q.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	now := q.Clock.Now()
	if now.Before(w.until) {
		return w.count
	}
	items, more, err := statefleet.QueuedStripes(q.Machine.View(r), maxWaits)
	if err != nil {
		q.Log.Error("the repair queue cannot be looked through: what waits for repair is not told (`moraine fsck --metadata` checks the state)", "err", err)
		w.until, w.count = now.Add(waitsRetry), nil
		return nil
	}
	w.until, w.count = now.Add(waitsAge), countWaits(q.fleet.Topology.View(), items)
	w.count.More = more
	return w.count
}

func countWaits(view *fleet.View, items []statefleet.QueuedStripe) *wire.RepairWaits {
	v := planner{view}
	w := &wire.RepairWaits{Counted: uint64(len(items))}
	plans := 0
	for _, q := range items {
		switch {
		case q.Lost:
			w.Lost++
			continue
		case q.Gone:
			w.LostDevice++
		case q.Missing != 0:
			w.Corrupt++
		case q.Protects < int(q.Stripe.Scheme.M):
			w.Spread++
		default:
			w.Drain++
		}
		if plans++; q.Running || plans > maxPlans || len(planRepair(view, q.Stripe, q.Missing)) > 0 {
			continue
		}
		switch {
		case !v.readable(q.Stripe, q.Missing):
			w.Unreadable++
		case v.outside(q.Stripe, q.Missing):
			w.NoRoom++
		default:
			w.NoHost++
		}
	}
	return w
}

// readable reports whether so many chunks of a stripe are on devices that answer that the
// others can be rebuilt; missing has a bit for each that is not there.
func (v planner) readable(s *moraine.Stripe, missing uint32) bool {
	n := 0
	for i, c := range s.Chunks {
		if d := v.Devices[uint32(c.Device)]; missing&(1<<i) == 0 && d != nil && d.Alive {
			n++
		}
	}
	return n >= int(s.Scheme.K)
}

// outside reports whether a host takes chunks that has none of the stripe's, but for those
// that are missing: where nothing is put there it has no room.
func (v planner) outside(s *moraine.Stripe, missing uint32) bool {
	has := make(map[string]bool, len(s.Chunks))
	for i, c := range s.Chunks {
		if d := v.Devices[uint32(c.Device)]; missing&(1<<i) == 0 && d != nil && d.State == fleet.DeviceIn {
			has[d.Host] = true
		}
	}
	for id, h := range v.Hosts {
		if !has[id] && h.Alive && h.MaintenanceUntil == 0 && takes(h) {
			return true
		}
	}
	return false
}

// takes reports whether a host has a device in service.
func takes(h *wire.Host) bool {
	for _, d := range h.Devices {
		if d.State == fleet.DeviceIn {
			return true
		}
	}
	return false
}
