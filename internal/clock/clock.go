// Package clock is the seam for time: components take a Clock from their Deps,
// so that tests can run hours in milliseconds. Only monotonic differences of
// Now matter to correctness; wall time is for people and for mtime.
package clock

import "time"

// Clock tells the time and makes timers. All methods may be called concurrently.
type Clock interface {
	// Now returns the present time, with a monotonic reading.
	Now() time.Time
	// Since returns the time that has passed since t, which Now returned. It
	// costs half of what Now does, which reads the wall clock, too.
	Since(t time.Time) time.Duration
	// After returns a channel that gets the time once, d from now.
	After(d time.Duration) <-chan time.Time
	// NewTicker returns a ticker; the caller stops it.
	NewTicker(d time.Duration) *time.Ticker
}

// System is the machine's clock. Inside a testing/synctest bubble it is the
// bubble's.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now() }

// Since implements Clock.
func (System) Since(t time.Time) time.Duration { return time.Since(t) }

// After implements Clock.
func (System) After(d time.Duration) <-chan time.Time { return time.After(d) }

// NewTicker implements Clock.
func (System) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }

// Timed is a Clock that calls functions. It is optional: what uses it does without where
// a Clock is none.
type Timed interface {
	// AfterFunc calls fn, in a goroutine of its own, d from now, unless the timer
	// is stopped before.
	AfterFunc(d time.Duration, fn func()) *time.Timer
}

// AfterFunc implements Timed.
func (System) AfterFunc(d time.Duration, fn func()) *time.Timer { return time.AfterFunc(d, fn) }
