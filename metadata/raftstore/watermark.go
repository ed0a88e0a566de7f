package raftstore

import (
	"sync"
	"sync/atomic"
)

// watermark is a number that grows, with waiters for a value.
type watermark struct {
	now atomic.Uint64
	mu  sync.Mutex
	// risen is closed when now grows; nil while nobody waits.
	risen chan struct{}
}

func (w *watermark) value() uint64 { return w.now.Load() }

// raise sets the number to v if that is higher.
func (w *watermark) raise(v uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v <= w.now.Load() {
		return
	}
	w.now.Store(v)
	if w.risen != nil {
		close(w.risen)
		w.risen = nil
	}
}

// reached returns a channel that is closed once the number may have reached v (check again then);
// nil if it has.
func (w *watermark) reached(v uint64) <-chan struct{} {
	if w.now.Load() >= v {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now.Load() >= v {
		return nil
	}
	if w.risen == nil {
		w.risen = make(chan struct{})
	}
	return w.risen
}
