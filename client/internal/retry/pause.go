package retry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/morainefs/moraine/internal/clock"
)

// Pause is PauseUpTo with at most a second.
func Pause(ctx context.Context, clk clock.Clock, try int) bool {
	return PauseUpTo(ctx, clk, try, time.Second)
}

// PauseUpTo waits before the next attempt: 10 ms, doubled for each try up to longest, and of
// that a random half to all. It returns false if ctx ended first.
func PauseUpTo(ctx context.Context, clk clock.Clock, try int, longest time.Duration) bool {
	d := min(10*time.Millisecond<<min(try, 10), longest)
	d = d/2 + rand.N(d/2+1)
	select {
	case <-clk.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
