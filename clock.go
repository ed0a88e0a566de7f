package moraine

import "time"

// Clock tells the time and makes timers. Times have a monotonic reading. All methods may be called
// concurrently.
type Clock interface {
	Now() time.Time
	// Since returns the time since t, which Now returned.
	Since(t time.Time) time.Duration
	// After returns a channel that gets the time once, d from now.
	After(d time.Duration) <-chan time.Time
	// NewTicker returns a ticker; the caller stops it.
	NewTicker(d time.Duration) *time.Ticker
}
