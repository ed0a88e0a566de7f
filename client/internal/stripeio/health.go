package stripeio

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// health remembers which devices recently failed this client. Until their pause ends, writes go
// elsewhere, and reads use the other chunks first. It also remembers, for one host, devices
// that are late with reads; only reads skip those. Safe for concurrent use.
type health struct {
	clock clock.Clock

	mu   sync.Mutex // guards the fields below
	bad  map[moraine.DeviceID]trouble
	late map[moraine.DeviceID]trouble // of lateHost
	lags map[moraine.DeviceID]lag
	some atomic.Bool // whether lags is not empty, so that successful reads need not lock

	lateHost string
}

// lag counts the late answers of a device.
type lag struct {
	first time.Time
	n     int
}

// trouble is the pause of a device that failed.
type trouble struct {
	until time.Time
	pause time.Duration // length of the last pause
}

// The client avoids a device for firstPause after a failure, and twice as long after each
// further one, up to longestPause. So it writes to a recovered device within a minute. The
// pause starts again at firstPause once the device has been good for as long as it was avoided.
const (
	firstPause   = 5 * time.Second
	longestPause = 40 * time.Second
)

// Reads skip a device after lagsToFail hedges of its chunks without any answer, spread over at
// least lagSpan and at most lagMemory. Each further read would wait in vain. Reads that ran
// together while it paused for a moment are not enough. Reads skip devices of only one host at
// a time. If more are late the cluster is busy, and reading k chunks instead of one would make
// it busier.
const (
	lagsToFail = 3
	lagSpan    = 250 * time.Millisecond
	lagMemory  = 5 * time.Second
)

func newHealth(clk clock.Clock) *health {
	return &health{clock: clk, bad: map[moraine.DeviceID]trouble{}, late: map[moraine.DeviceID]trouble{}, lags: map[moraine.DeviceID]lag{}}
}

// lagged records that a device's chunk was late, and that others arrived first.
func (h *health) lagged(id moraine.DeviceID, host string) {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lags[id]
	if l.n == 0 || now.Sub(l.first) > lagMemory {
		l = lag{first: now}
	}
	l.n++
	h.lags[id] = l
	if l.n >= lagsToFail && now.Sub(l.first) >= lagSpan {
		delete(h.lags, id)
		h.passOver(id, host, now)
	}
	h.some.Store(len(h.lags) > 0)
}

// passOver makes reads skip a device, unless they already skip another host's. The caller holds
// the mutex.
func (h *health) passOver(id moraine.DeviceID, host string, now time.Time) {
	for other, t := range h.late {
		if h.lateHost != host && now.Before(t.until) {
			return
		}
		if h.lateHost != host || now.Sub(t.until) >= t.pause {
			delete(h.late, other)
		}
	}
	h.lateHost = host
	h.late[id] = h.late[id].again(now)
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

// failed records a failure of a device. Failures of concurrent requests during a pause do not
// add up.
func (h *health) failed(id moraine.DeviceID) {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad[id] = h.bad[id].again(now)
}

// again returns the state after one more failure.
func (t trouble) again(now time.Time) trouble {
	switch {
	case now.Before(t.until):
		return t
	case t.pause > 0 && now.Sub(t.until) < t.pause:
		t.pause = min(2*t.pause, longestPause)
	default:
		t.pause = firstPause
	}
	t.until = now.Add(t.pause)
	return t
}

// good records that a device that may have failed before has served a write.
func (h *health) good(id moraine.DeviceID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t, ok := h.bad[id]; ok && h.clock.Now().Before(t.until) {
		delete(h.bad, id)
	}
}

// avoided reports whether reads should avoid the device now.
func (h *health) avoided(id moraine.DeviceID) bool {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.bad[id].until) || now.Before(h.late[id].until)
}

// all returns the devices that writes should avoid now, in order.
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
