package client

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/internal/limit"
)

// budget bounds the bytes that all files of a client hold for stripes that are
// being filled or sent. Bytes of stripes being sent always come back; those of
// stripes being filled come back only when their writer goes on, which may be
// the very program that waits here. So nobody waits while it holds a stripe
// being filled, and whoever waits has the others send theirs, short. Safe for
// concurrent use.
type budget struct {
	size    int64
	sem     *limit.Semaphore
	waiting atomic.Int32
	metrics *metrics.Metrics

	mu    sync.Mutex
	files map[filler]struct{} // that may hold a stripe being filled
}

// filler is a writer that may hold a stripe being filled.
type filler interface {
	// yield sends it, unless that would have to be waited for.
	yield()
}

func newBudget(sem *limit.Semaphore, metrics *metrics.Metrics) *budget {
	return &budget{size: sem.Size(), sem: sem, metrics: metrics, files: map[filler]struct{}{}}
}

// try takes n bytes if they are there and nobody waits.
func (b *budget) try(n int64) bool { return b.sem.TryAcquire(n) }

// acquire takes n bytes, at most size, and waits for them, no longer than the client's
// patience. The caller must hold no stripe being filled.
func (b *budget) acquire(ctx context.Context, n int64) error {
	if b.sem.TryAcquire(n) {
		return nil
	}
	b.metrics.BudgetWaits.Inc()
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	// Writers that look at wanted from now on give up their stripes by
	// themselves; those that rest are asked.
	for _, f := range b.holders() {
		f.yield()
	}
	return b.sem.Acquire(ctx, n)
}

func (b *budget) release(n int64) { b.sem.Release(n) }

// wanted reports whether somebody waits.
func (b *budget) wanted() bool { return b.waiting.Load() > 0 }

func (b *budget) join(f filler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files[f] = struct{}{}
}

func (b *budget) leave(f filler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.files, f)
}

func (b *budget) holders() []filler {
	b.mu.Lock()
	defer b.mu.Unlock()
	files := make([]filler, 0, len(b.files))
	for f := range b.files {
		files = append(files, f)
	}
	return files
}
