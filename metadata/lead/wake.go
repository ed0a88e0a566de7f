package lead

import "sync"

// Signal wakes all waiters.
type Signal struct{ s *signalState }

type signalState struct {
	mu sync.Mutex
	ch chan struct{}
}

// NewSignal returns a signal.
func NewSignal() Signal { return Signal{&signalState{ch: make(chan struct{})}} }

// Wait returns a channel that the next Fire closes.
func (s Signal) Wait() <-chan struct{} {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	return s.s.ch
}

// Fire wakes all waiters.
func (s Signal) Fire() {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	close(s.s.ch)
	s.s.ch = make(chan struct{})
}

// Poke is a wake-up call for one worker. Several calls of Set during its work count as one.
type Poke chan struct{}

// NewPoke returns a Poke for which Set was not called yet.
func NewPoke() Poke { return make(Poke, 1) }

// Set wakes the worker; it never blocks.
func (p Poke) Set() {
	select {
	case p <- struct{}{}:
	default:
	}
}
