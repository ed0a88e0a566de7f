package retry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/morainefs/moraine/internal/clock"
)

// Pause is PauseUpTo with a second.
func Pause(ctx context.Context, clk clock.Clock, try int) bool {
	return PauseUpTo(ctx, clk, try, time.Second)
}

// PauseUpTo waits before the next attempt: 10 ms doubling to longest, at random
// between half of it and all. It returns false when ctx ended first.
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
