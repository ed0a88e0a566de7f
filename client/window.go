package client

import (
	"context"
	"sync"
)

// maxOutstanding bounds the mutations of a session whose answers have not all
// come. The service keeps the answers of a window of 1,024 numbers and refuses
// a number past it, so the client stays below that by itself.
const maxOutstanding = 1000

// window hands out the request numbers of one session, from 1, and knows below
// which number every answer has come. Safe for concurrent use.
type window struct {
	mu   sync.Mutex
	next uint64 // to hand out
	low  uint64 // all below are finished
	done map[uint64]struct{}
	free chan struct{} // closed when low rises; nil while nobody waits
}

func newWindow() *window {
	return &window{next: 1, low: 1, done: map[uint64]struct{}{}}
}

// take returns the next number. It waits while maxOutstanding numbers lie
// between it and the lowest unfinished one.
func (w *window) take(ctx context.Context) (uint64, error) {
	for {
		w.mu.Lock()
		if w.next-w.low < maxOutstanding {
			n := w.next
			w.next++
			w.mu.Unlock()
			return n, nil
		}
		if w.free == nil {
			w.free = make(chan struct{})
		}
		free := w.free
		w.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// finish says that the answer of n has come, or that nobody will ask for it
// again: a late copy of that request is then refused by the service.
func (w *window) finish(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[n] = struct{}{}
	low := w.low
	for {
		if _, ok := w.done[w.low]; !ok {
			break
		}
		delete(w.done, w.low)
		w.low++
	}
	if w.low != low && w.free != nil {
		close(w.free)
		w.free = nil
	}
}

// ackedBelow returns the number below which all are finished.
func (w *window) ackedBelow() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low
}
