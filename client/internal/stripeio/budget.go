package stripeio

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/limit"
)

// Budget bounds the bytes of all stripes of a client that are being filled or sent. Bytes of
// stripes being sent always become free. Those of stripes being filled become free only when
// their writer continues, and that may be the program that waits here. So no writer waits while
// it has a stripe being filled, and a waiting one makes the others send theirs, short. Safe for
// concurrent use.
type Budget struct {
	size    int64
	Sem     *limit.Semaphore
	waiting atomic.Int32
	metrics *metrics.Metrics

	mu    sync.Mutex
	files map[Filler]struct{} // writers that may have a stripe being filled
}

// Filler is a writer that may have a stripe being filled.
type Filler interface {
	// Yield sends that stripe, unless it would have to wait.
	Yield()
}

func newBudget(sem *limit.Semaphore, metrics *metrics.Metrics) *Budget {
	return &Budget{size: sem.Size(), Sem: sem, metrics: metrics, files: map[Filler]struct{}{}}
}

// Try takes n bytes if they are free and no writer waits.
func (b *Budget) Try(n int64) bool { return b.Sem.TryAcquire(n) }

// Acquire takes n bytes, at most size, and waits for them, no longer than the client's
// patience. The caller must have no stripe being filled.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
	if b.Sem.TryAcquire(n) {
		return nil
	}
	b.metrics.BudgetWaits.Inc()
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	// Active writers check Wanted from now on and send their stripes; Yield makes idle ones send
	// theirs.
	for _, f := range b.holders() {
		f.Yield()
	}
	return b.Sem.Acquire(ctx, n)
}

// Release returns n bytes.
func (b *Budget) Release(n int64) { b.Sem.Release(n) }

// Wanted reports whether a writer waits for memory.
func (b *Budget) Wanted() bool { return b.waiting.Load() > 0 }

// Join registers f, whose Yield Acquire calls when a writer waits for memory, until Leave.
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
