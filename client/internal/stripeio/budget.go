package stripeio

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/limit"
)

// Budget bounds the bytes that all files of a client hold for stripes that are
// being filled or sent. Bytes of stripes being sent always come back; those of
// stripes being filled come back only when their writer goes on, which may be
// the very program that waits here. So nobody waits while it holds a stripe
// being filled, and whoever waits has the others send theirs, short. Safe for
// concurrent use.
type Budget struct {
	size    int64
	Sem     *limit.Semaphore
	waiting atomic.Int32
	metrics *metrics.Metrics

	mu    sync.Mutex
	files map[Filler]struct{} // that may hold a stripe being filled
}

// Filler is a writer that may hold a stripe being filled.
type Filler interface {
	// Yield sends it, unless that would have to be waited for.
	Yield()
}

func newBudget(sem *limit.Semaphore, metrics *metrics.Metrics) *Budget {
	return &Budget{size: sem.Size(), Sem: sem, metrics: metrics, files: map[Filler]struct{}{}}
}

// Try takes n bytes if they are there and nobody waits.
func (b *Budget) Try(n int64) bool { return b.Sem.TryAcquire(n) }

// Acquire takes n bytes, at most size, and waits for them, no longer than the client's
// patience. The caller must hold no stripe being filled.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
	if b.Sem.TryAcquire(n) {
		return nil
	}
	b.metrics.BudgetWaits.Inc()
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	// Writers that look at wanted from now on give up their stripes by
	// themselves; those that rest are asked.
	for _, f := range b.holders() {
		f.Yield()
	}
	return b.Sem.Acquire(ctx, n)
}

// Release gives n bytes back.
func (b *Budget) Release(n int64) { b.Sem.Release(n) }

// Wanted reports whether somebody waits.
func (b *Budget) Wanted() bool { return b.waiting.Load() > 0 }

// Join has f be asked for its memory where somebody waits for some, until Leave.
func (b *Budget) Join(f Filler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[f] = struct{}{}
}

// Leave ends what Join began.
func (b *Budget) Leave(f Filler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.files, f)
}

func (b *Budget) holders() []Filler {
	b.mu.Lock()
	defer b.mu.Unlock()
	files := make([]Filler, 0, len(b.files))
	for f := range b.files {
		files = append(files, f)
	}
	return files
}
