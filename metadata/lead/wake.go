package lead

import "sync"

// Signal wakes everybody who waits.
type Signal struct{ s *signalState }

type signalState struct {
	mu sync.Mutex
	ch chan struct{}
}

func NewSignal() Signal { return Signal{&signalState{ch: make(chan struct{})}} }

// Wait returns a channel that is closed by the next fire.
func (s Signal) Wait() <-chan struct{} {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	return s.s.ch
}

func (s Signal) Fire() {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	close(s.s.ch)
	s.s.ch = make(chan struct{})
}

// Poke wakes one worker; pokes that come while it works are one.
type Poke chan struct{}

func NewPoke() Poke { return make(Poke, 1) }

func (p Poke) Set() {
	select {
	case p <- struct{}{}:
	default:
	}
}
