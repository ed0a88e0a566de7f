package session

import (
	"context"
	"slices"
	"sync"

	"github.com/morainefs/moraine/internal/limit"
)

// maxOutstanding bounds the mutations of a session without an answer. The service keeps the
// answers of a window of 1,024 numbers and refuses a number past it, so the client stays below
// that.
const maxOutstanding = 1000

// window assigns the request numbers of one session, and knows below which number every
// request is finished. Safe for concurrent use.
type window struct {
	wait *limit.Resource

	mu   sync.Mutex
	next uint64 // next number to assign
	low  uint64 // all numbers below are finished
	done map[uint64]struct{}
	free chan struct{} // closed when low rises; nil while no caller waits
	// given are abandoned numbers above low whose requests may still arrive, and that the service
	// does not know of.
	given []uint64
}

// newWindow returns a window whose first number is first.
func newWindow(wait *limit.Resource, first uint64) *window {
	return &window{wait: wait, next: first, low: first, done: map[uint64]struct{}{}}
}

// take returns the next number. It waits while maxOutstanding numbers lie between it and the
// lowest unfinished one, no longer than the client's patience.
func (w *window) take(ctx context.Context) (uint64, error) {
	n, free := w.tryTake()
	if free == nil {
		return n, nil
	}
	return w.await(ctx, free)
}

// await is take that must first wait for free.
func (w *window) await(ctx context.Context, free <-chan struct{}) (n uint64, err error) {
	err = w.wait.Wait(ctx, func(ctx context.Context) error {
		for free != nil {
			select {
			case <-free:
			case <-ctx.Done():
				return ctx.Err()
			}
			n, free = w.tryTake()
		}
		return nil
	})
	return n, err
}

// tryTake returns the next number, or a channel that is closed when there may be one.
func (w *window) tryTake() (n uint64, free <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next-w.low < maxOutstanding {
		n = w.next
		w.next++
		return n, nil
	}
	if w.free == nil {
		w.free = make(chan struct{})
	}
	return 0, w.free
}

// finish records that n has its answer, or was not sent.
func (w *window) finish(n uint64) { w.end(n, false) }

// end records that n has its answer, or that no caller waits for it any longer. lost is whether
// an attempt may still be on its way. The service refuses that attempt once it has received a
// later number, whatever numbers before n are unfinished.
func (w *window) end(n uint64, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[n] = struct{}{}
	if lost {
		w.given = append(w.given, n)
	}
	low := w.low
	for {
		if _, ok := w.done[w.low]; !ok {
			break
		}
		delete(w.done, w.low)
		w.low++
	}
	w.given = slices.DeleteFunc(w.given, func(n uint64) bool { return n < w.low })
	if w.low != low && w.free != nil {
		close(w.free)
		w.free = nil
	}
}

// acked returns the number below which all are finished, and the abandoned ones above it.
func (w *window) acked() (below uint64, given []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low, slices.Clone(w.given)
}

// reported records that the state knows of abandoned numbers, because it applied a command that
// listed them (ops.Op.Logged).
func (w *window) reported(given []uint64) {
	if len(given) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given = slices.DeleteFunc(w.given, func(n uint64) bool { return slices.Contains(given, n) })
}
