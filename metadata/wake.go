package metadata

import "sync"

// signal wakes everybody who waits.
type signal struct{ s *signalState }

type signalState struct {
	mu sync.Mutex
	ch chan struct{}
}

func newSignal() signal { return signal{&signalState{ch: make(chan struct{})}} }

// wait returns a channel that is closed by the next fire.
func (s signal) wait() <-chan struct{} {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	return s.s.ch
}

func (s signal) fire() {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	close(s.s.ch)
	s.s.ch = make(chan struct{})
}

// poke wakes one worker; pokes that come while it works are one.
type poke chan struct{}

func newPoke() poke { return make(poke, 1) }

func (p poke) set() {
	select {
	case p <- struct{}{}:
	default:
	}
}
