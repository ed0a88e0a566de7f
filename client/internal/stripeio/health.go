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

// health remembers which devices failed this client lately: writes are placed
// elsewhere, and reads go to the other chunks first, until the time is over. Of one host it
// remembers devices that are late with reads too, which those alone pass over.
// Safe for concurrent use.
type health struct {
	clock clock.Clock

	mu   sync.Mutex // guards what follows
	bad  map[moraine.DeviceID]trouble
	late map[moraine.DeviceID]trouble // of lateHost
	lags map[moraine.DeviceID]lag
	some atomic.Bool // lags has any, so that who reads well need not look

	lateHost string
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

// Reads pass over a device when others had to be asked in the place of its chunks
// lagsToFail times, over lagSpan at least and lagMemory at most, and it has answered nothing
// meanwhile: each further read would wait for it in vain. Reads that were under way together
// when it paused for a moment are not enough. That is for one host at a time: where more are
// late the cluster is busy, and to read k chunks in the place of one would make it busier.
const (
	lagsToFail = 3
	lagSpan    = 250 * time.Millisecond
	lagMemory  = 5 * time.Second
)

func newHealth(clk clock.Clock) *health {
	return &health{clock: clk, bad: map[moraine.DeviceID]trouble{}, late: map[moraine.DeviceID]trouble{}, lags: map[moraine.DeviceID]lag{}}
}

// lagged records that a chunk of a device of a host was late, and that others came first.
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

// passOver has reads pass over a device, unless they do so of another host's already. The
// mutex is held.
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

// failed records a failure of a device. Failures while it is avoided already,
// of requests that were under way, do not add up.
func (h *health) failed(id moraine.DeviceID) {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad[id] = h.bad[id].again(now)
}

// again is what is remembered after one more failure.
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

// good records that a device, which may have failed before, has served a write.
func (h *health) good(id moraine.DeviceID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t, ok := h.bad[id]; ok && h.clock.Now().Before(t.until) {
		delete(h.bad, id)
	}
}

// avoided reports whether reads are to avoid the device now.
func (h *health) avoided(id moraine.DeviceID) bool {
	now := h.clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.bad[id].until) || now.Before(h.late[id].until)
}

// all returns the devices to be avoided by writes now, in order.
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
