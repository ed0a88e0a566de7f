// Package clock is the seam for time: components take a Clock from their Deps, so
// that tests can run hours in milliseconds. Correctness depends only on monotonic
// differences of Now; wall time is for people and for mtime. One path through it: a
// component calls Now of its Clock, later Since of that time, and After or
// NewTicker to wait.
package clock

import "time"

// Clock tells the time and makes timers. All methods may be called concurrently.
type Clock interface {
	// Now returns the current time, with a monotonic reading.
	Now() time.Time
	// Since returns the time since t, which Now returned. It costs half of Now,
	// which also reads the wall clock.
	Since(t time.Time) time.Duration
	// After returns a channel that gets the time once, d from now.
	After(d time.Duration) <-chan time.Time
	// NewTicker returns a ticker; the caller stops it.
	NewTicker(d time.Duration) *time.Ticker
}

// System is the machine's clock. Inside a testing/synctest bubble it is the
// bubble's clock.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now() }

// Since implements Clock.
func (System) Since(t time.Time) time.Duration { return time.Since(t) }

// After implements Clock.
func (System) After(d time.Duration) <-chan time.Time { return time.After(d) }

// NewTicker implements Clock.
func (System) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }

// Timed is a Clock that calls functions. It is optional: its users work without it
// if a Clock does not have it.
type Timed interface {
	// AfterFunc calls fn, in a goroutine of its own, d from now, unless the timer
	// is stopped before.
	AfterFunc(d time.Duration, fn func()) *time.Timer
}

// AfterFunc implements Timed.
func (System) AfterFunc(d time.Duration, fn func()) *time.Timer { return time.AfterFunc(d, fn) }
