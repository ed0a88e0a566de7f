package client

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// health remembers which devices failed this client lately: writes are placed
// elsewhere, and reads go to the other chunks first, until the time is over.
// Safe for concurrent use.
type health struct {
	clock clock.Clock

	mu  sync.Mutex
	bad map[moraine.DeviceID]trouble
}

// trouble is what is remembered of a device that failed.
type trouble struct {
	until time.Time
	pause time.Duration // that the last failure was given
}

// A device is avoided for firstPause after a failure, and twice as long after
// each further one, up to longestPause: a device that is well again is written to
// within a minute. One that has been good again for as
// long as it was avoided starts anew.
const (
	firstPause   = 5 * time.Second
	longestPause = 40 * time.Second
)

func newHealth(clk clock.Clock) *health {
	return &health{clock: clk, bad: map[moraine.DeviceID]trouble{}}
}

// failed records a failure of a device. Failures while it is avoided already,
// of requests that were under way, do not add up.
func (h *health) failed(id moraine.DeviceID) {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok := h.bad[id]
	switch {
	case ok && now.Before(t.until):
		return
	case ok && now.Sub(t.until) < t.pause:
		t.pause = min(2*t.pause, longestPause)
	default:
		t.pause = firstPause
	}
	t.until = now.Add(t.pause)
	h.bad[id] = t
}

// good records that a device, which may have failed before, has served a write.
func (h *health) good(id moraine.DeviceID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t, ok := h.bad[id]; ok && h.clock.Now().Before(t.until) {
		delete(h.bad, id)
	}
}

// avoided reports whether the device is to be avoided now.
func (h *health) avoided(id moraine.DeviceID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok := h.bad[id]
	return ok && h.clock.Now().Before(t.until)
}

// all returns the devices to be avoided now, in order.
func (h *health) all() []moraine.DeviceID {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []moraine.DeviceID
	for id, t := range h.bad {
		switch {
		case now.Before(t.until):
			ids = append(ids, id)
		case now.Sub(t.until) >= t.pause:
			delete(h.bad, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func deviceRef(id moraine.DeviceID) string { return "device " + strconv.FormatUint(uint64(id), 10) }
