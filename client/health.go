package client

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// health remembers which devices failed this client lately: writes are placed
// elsewhere, and reads go to the other chunks first, until the time is over.
// Safe for concurrent use.
type health struct {
	clock clock.Clock

	mu   sync.Mutex // guards what follows
	bad  map[moraine.DeviceID]trouble
	lags map[moraine.DeviceID]lag
	some atomic.Bool // lags has any, so that who reads well need not look
}

// lag is what is remembered of a device that did not answer in time.
type lag struct {
	first time.Time
	n     int
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

// A device has failed when others had to be asked in the place of its chunks lagsToFail
// times, over lagSpan at least, and it has answered nothing meanwhile: each further read
// would wait for it in vain. Reads that were under way together when it paused for a moment
// are not enough.
const (
	lagsToFail = 3
	lagSpan    = 250 * time.Millisecond
)

func newHealth(clk clock.Clock) *health {
	return &health{clock: clk, bad: map[moraine.DeviceID]trouble{}, lags: map[moraine.DeviceID]lag{}}
}

// lagged records that a chunk of a device was late, and that others came first.
func (h *health) lagged(id moraine.DeviceID) {
	now := h.clock.Now()
	h.mu.Lock()
	l := h.lags[id]
	if l.n == 0 {
		l.first = now
	}
	l.n++
	over := l.n >= lagsToFail && now.Sub(l.first) >= lagSpan
	if h.lags[id] = l; over {
		delete(h.lags, id)
	}
	h.some.Store(len(h.lags) > 0)
	h.mu.Unlock()
	if over {
		h.failed(id)
	}
}

// answered records that a device has served a read.
func (h *health) answered(id moraine.DeviceID) {
	if !h.some.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lags, id)
	h.some.Store(len(h.lags) > 0)
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
