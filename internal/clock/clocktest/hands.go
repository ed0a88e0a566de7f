// Package clocktest has a clock that tests move as the clocks of machines move.
// Either somebody sets the wall clock, and the monotonic clock continues. Or the
// machine sleeps: the monotonic clock stands still, and the wall clock continues.
// One path through it: a test passes Hands as the Clock of a component, and calls
// Set or Slept.
package clocktest

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/morainefs/moraine/internal/clock"
)

// Hands is the machine's clock, or a bubble's, with its wall clock set, and its
// monotonic reading behind. Timers do not change. The zero value is the right time.
// Methods may be called concurrently.
type Hands struct {
	clock.System
	ahead  atomic.Int64 // seconds that the wall clock is set ahead
	behind atomic.Int64 // nanoseconds that the monotonic reading lags
}

// Set sets the wall clock ahead of the right time, or back from it, in whole
// seconds. The monotonic reading does not change.
func (h *Hands) Set(ahead time.Duration) { h.ahead.Store(int64(ahead / time.Second)) }

// Slept makes the monotonic reading stand still for d, as on a machine that was
// suspended. The wall clock does not change.
func (h *Hands) Slept(d time.Duration) { h.behind.Add(int64(d)) }

// Now implements clock.Clock. Only differences to other times of this clock follow
// the monotonic reading.
func (h *Hands) Now() time.Time {
	now := time.Now()
	mono := now.UnixNano() // inside a bubble of synctest, times have no monotonic reading
	if r := (*reading)(unsafe.Pointer(&now)); r.wall&hasMonotonic != 0 {
		mono = r.mono
	}
	return with(now.Unix()+h.ahead.Load(), now.Nanosecond(), mono-h.behind.Load())
}

// Since implements clock.Clock: by the monotonic reading.
func (h *Hands) Since(t time.Time) time.Duration { return h.Now().Sub(t) }

// reading is how package time stores a time with a monotonic reading. wall has one
// bit that says so, 33 bits of seconds since 1885 and 30 of nanoseconds of the wall
// clock. mono has the reading. There is no other way to move one without the other.
type reading struct {
	wall uint64
	mono int64
}

const hasMonotonic = 1 << 63

// from1885 is the number of seconds between 1885 and 1970, with 20 leap days.
const from1885 = (85*365 + 20) * 24 * 3600

// with makes a time of both readings.
func with(unix int64, nanos int, mono int64) time.Time {
	t := time.Unix(unix, int64(nanos))
	r := (*reading)(unsafe.Pointer(&t))
	*r = reading{wall: hasMonotonic | uint64(unix+from1885)<<30 | uint64(nanos), mono: mono}
	if t.Unix() != unix || t.Nanosecond() != nanos || t.Add(time.Second).Sub(t) != time.Second || t.Round(0).Sub(t) != 0 {
		panic("clocktest: this Go release stores time readings differently: adapt package clocktest")
	}
	return t
}
