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
	// maxWaits bounds the queued stripes that are counted by what they wait for. maxPlans bounds
	// those of them for which the leader finds out why they cannot move.
	maxWaits, maxPlans = 4096, 512
	// waitsAge is how long a count is reused. waitsRetry is the pause after a failed count, which
	// is logged.
	waitsAge, waitsRetry = time.Second, time.Minute
)

// repairWaits is the last count of the repair queue by cause.
type repairWaits struct {
	mu    sync.Mutex
	until time.Time         // it is reused until then
	count *wire.RepairWaits // nil if it failed
}

// waitsNow counts the repair queue by cause and says why stripes wait. It returns nil if the queue
// is empty, or if the count failed. The failure is only logged, because the rest of the status,
// such as how full the cluster is, must still be answered.
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
		q.Log.Error("could not read the repair queue: status does not show what waits for repair (`moraine fsck --metadata` checks the state)", "err", err)
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

// readable reports whether enough chunks of a stripe are on devices that are up
// to rebuild the others. missing is the bit mask of absent chunks.
func (v planner) readable(s *moraine.Stripe, missing uint32) bool {
	n := 0
	for i, c := range s.Chunks {
		if d := v.Devices[uint32(c.Device)]; missing&(1<<i) == 0 && d != nil && d.Alive {
			n++
		}
	}
	return n >= int(s.Scheme.K)
}

// outside reports whether a host without chunks of the stripe, other than missing ones, has a
// device in service. If nothing is placed there, it has no room.
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
