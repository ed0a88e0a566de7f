// Package clocktest has a clock that tests move as the clocks of machines move:
// somebody sets the hands, and what was measured goes on; or the machine sleeps,
// and what was measured stands still while the hands go on.
package clocktest

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/morainefs/moraine/internal/clock"
)

// Hands is the machine's clock, or a bubble's, with its hands set, and its
// monotonic reading behind. Timers are not changed. The zero value is right.
// Methods may be called concurrently.
type Hands struct {
	clock.System
	ahead  atomic.Int64 // seconds that the wall clock is set ahead
	behind atomic.Int64 // nanoseconds that the monotonic reading lags
}

// Set sets the wall clock ahead of the right time, or back from it, in whole
// seconds. The monotonic reading does not notice.
func (h *Hands) Set(ahead time.Duration) { h.ahead.Store(int64(ahead / time.Second)) }

// Slept has the monotonic reading not have gone on for d: so it is on a machine
// that was suspended. The wall clock does not notice.
func (h *Hands) Slept(d time.Duration) { h.behind.Add(int64(d)) }

// Now implements clock.Clock. Of what it returns only the differences to other
// times of this clock go by the monotonic reading.
func (h *Hands) Now() time.Time {
	now := time.Now()
	mono := now.UnixNano() // in a bubble, whose times have no other reading
	if r := (*reading)(unsafe.Pointer(&now)); r.wall&hasMonotonic != 0 {
		mono = r.mono
	}
	return with(now.Unix()+h.ahead.Load(), now.Nanosecond(), mono-h.behind.Load())
}

// Since implements clock.Clock: by the monotonic reading.
func (h *Hands) Since(t time.Time) time.Duration { return h.Now().Sub(t) }

// reading is how package time keeps a time that has a monotonic reading: in wall
// one bit that says so, 33 bits of seconds since 1885 and 30 of nanoseconds of the
// wall clock; in mono the reading. There is no other way to move one without the
// other.
type reading struct {
	wall uint64
	mono int64
}

const hasMonotonic = 1 << 63

// from1885 is how many seconds lie between 1885 and 1970, with 20 leap days.
const from1885 = (85*365 + 20) * 24 * 3600

// with makes a time of both readings.
func with(unix int64, nanos int, mono int64) time.Time {
	t := time.Unix(unix, int64(nanos))
	r := (*reading)(unsafe.Pointer(&t))
	*r = reading{wall: hasMonotonic | uint64(unix+from1885)<<30 | uint64(nanos), mono: mono}
	if t.Unix() != unix || t.Nanosecond() != nanos || t.Add(time.Second).Sub(t) != time.Second || t.Round(0).Sub(t) != 0 {
		panic("clocktest: package time keeps its readings in another way by now")
	}
	return t
}
