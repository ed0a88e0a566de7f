package agent

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// paceBurst is how many bytes may be given to the cluster at once, and the least that a rate allows
// in one step.
const paceBurst = 16 << 20

// pace bounds the rate at which parts are written, so that the training loop is not slowed, and lets
// trainers copy first. Its methods may be called concurrently.
type pace struct {
	metrics *Metrics
	copies  standstill
	limit   *rate.Limiter // nil: none

	mu sync.Mutex
	// hurried counts those who need the parts written as fast as possible; hurry is closed while
	// there are any.
	hurried int
	hurry   chan struct{}
}

func newPace(bytesPerSecond int64, m *Metrics) *pace {
	p := &pace{metrics: m, hurry: make(chan struct{})}
	if bytesPerSecond > 0 {
		p.limit = rate.NewLimiter(rate.Limit(bytesPerSecond), paceBurst)
	}
	return p
}

// wait delays the write of n bytes, at most paceBurst, unless somebody is in a hurry.
func (p *pace) wait(ctx context.Context, n int) error {
	p.metrics.FlushedBytes.Add(float64(n))
	p.mu.Lock()
	hurry := p.hurry
	p.mu.Unlock()
	if err := p.copies.wait(ctx, hurry); err != nil || p.limit == nil {
		return err
	}
	r := p.limit.ReserveN(time.Now(), n)
	d := r.Delay()
	if d <= 0 {
		return nil
	}
	began := time.Now()
	defer func() { p.metrics.PacedSeconds.Add(time.Since(began).Seconds()) }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-hurry:
		r.Cancel() // the bytes of a hurry do not slow what follows it
	case <-ctx.Done():
		r.Cancel()
		return ctx.Err()
	}
	return nil
}

// lift lifts the bound until the returned function is called: a node that is about to end writes as
// fast as it can.
func (p *pace) lift() (restore func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hurried++; p.hurried == 1 {
		close(p.hurry)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.hurried--; p.hurried == 0 {
			p.hurry = make(chan struct{})
		}
	}
}
