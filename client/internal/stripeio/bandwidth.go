package stripeio

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
)

// bandwidth bounds the bytes a second that the engine moves to chunkservers, or from them. A read
// or write of a stripe first takes its bytes, and waits. Only then it sends requests, so that no
// device counts as slow because of the bound. Bytes of which the need shows later, such as those
// of a hedge, do not wait: what is taken next waits for them too. nil bounds nothing. Safe for
// concurrent use.
type bandwidth struct {
	limiter *rate.Limiter
	clock   clock.Clock
	room    limit.Resource
	waited  prometheus.Counter // seconds
}

// burstTime is how much of a second may move at once after a pause.
const burstTime = time.Second / 10

// newBandwidth returns a bound; nil for a rate of 0.
func newBandwidth(bytesPerSecond int64, clk clock.Clock, room limit.Resource, waited prometheus.Counter) *bandwidth {
	if bytesPerSecond <= 0 {
		return nil
	}
	burst := max(1, bytesPerSecond*int64(burstTime)/int64(time.Second))
	return &bandwidth{limiter: rate.NewLimiter(rate.Limit(bytesPerSecond), int(burst)), clock: clk, room: room, waited: waited}
}

// take waits until n bytes may move, in the order of the calls. On error they are not counted.
func (b *bandwidth) take(ctx context.Context, n int64) error {
	if b == nil || n <= 0 {
		return nil
	}
	now := b.clock.Now()
	taken := b.reserve(now, n)
	wait := taken[len(taken)-1].DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	err := b.room.Wait(ctx, func(ctx context.Context) error {
		select {
		case <-b.clock.After(wait):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	over := b.clock.Now()
	b.waited.Add(over.Sub(now).Seconds())
	if err != nil {
		for i := range taken { // the last first: each returns what nobody has reserved behind it
			taken[len(taken)-1-i].CancelAt(over)
		}
	}
	return err
}

// owe counts n bytes that move now.
func (b *bandwidth) owe(n int64) {
	if b != nil && n > 0 {
		b.reserve(b.clock.Now(), n)
	}
}

// reserve takes n bytes in steps, since the limiter takes no more than a burst at once.
func (b *bandwidth) reserve(now time.Time, n int64) (taken []*rate.Reservation) {
	for step := int64(b.limiter.Burst()); n > 0; n -= step {
		taken = append(taken, b.limiter.ReserveN(now, int(min(n, step))))
	}
	return taken
}
