package stripeio

import (
	"context"
	"sync"
	"time"

	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/clock"
)

// aloneRead is the state of a read of one chunk in its caller's goroutine. As soon as the chunk
// is late, another goroutine continues as for any read, and the caller passes it the result of
// the request.
type aloneRead struct {
	mu      sync.Mutex
	over    bool            // the request has ended
	results chan wantResult // nil: the chunk was not late
	outcome chan error      // outcome of the whole read
}

// runAlone reads the one wanted chunk in the caller's goroutine: a small read costs no more
// than its request. If that is late, or fails, the read continues like any other: only collect
// decides what is hedged and rebuilt, and when.
func (r *stripeRead) runAlone(ctx context.Context, cancel context.CancelFunc, work *sync.WaitGroup, clk clock.Timed) error {
	w := r.wants[0]
	w.cancel = cancel
	if r.s.rebuildable() { // otherwise nothing can replace it
		late := r.c.pace.late(len(w.dst))
		timer := clk.AfterFunc(late, func() { r.goOn(ctx, work, late) })
		defer timer.Stop()
	}
	err := r.c.getChunkSums(ctx, r.s, w.index, w.lo, w.dst, &w.sums)
	results, outcome := r.endAlone()
	if outcome != nil {
		results <- wantResult{w, err}
		return <-outcome
	}
	switch {
	case err == nil:
		w.sums.Keep()
		return nil
	case ctx.Err() != nil:
		return retry.ContextError(ctx, "read stripe")
	}
	results = make(chan wantResult, 1)
	results <- wantResult{w, err}
	return r.collect(ctx, work, results, nil, 0)
}

// goOn is called when the chunk is late.
func (r *stripeRead) goOn(ctx context.Context, work *sync.WaitGroup, late time.Duration) {
	a := &r.alone
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	a.results, a.outcome = make(chan wantResult, 1), make(chan error, 1)
	a.mu.Unlock()
	now := make(chan time.Time, 1)
	now <- time.Time{}
	a.outcome <- r.collect(ctx, work, a.results, now, late)
}

// endAlone ends the request; outcome is nil if it was not late.
func (r *stripeRead) endAlone() (results chan wantResult, outcome chan error) {
	a := &r.alone
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	return a.results, a.outcome
}
