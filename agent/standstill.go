package agent

import (
	"context"
	"sync"
	"time"
)

// standstillFor is how long the flush stands still, at most, while trainers copy into slots; it then goes
// on for as long at least. A rank that is stopped between Begin and Seal costs no more than that.
const standstillFor = time.Second

// standstill lets the copies of the trainers go before the writes to the cluster: training stands still for
// the first, and nobody waits for the second. Its methods may be called concurrently.
type standstill struct {
	mu      sync.Mutex
	copying int           // trainers between Begin and Seal
	until   time.Time     // of this standstill
	idle    chan struct{} // closed when nobody copies
}

// begin says that a trainer copies, until the returned function is called.
func (s *standstill) begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copying++; s.copying == 1 {
		s.idle = make(chan struct{})
	}
	if now := time.Now(); now.After(s.until.Add(standstillFor)) {
		s.until = now.Add(standstillFor)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.copying--; s.copying == 0 {
			close(s.idle)
		}
	})
}

// wait returns when no trainer copies, when the standstill has lasted long enough, or when somebody is
// in a hurry.
func (s *standstill) wait(ctx context.Context, hurry <-chan struct{}) error {
	s.mu.Lock()
	copying, left, idle := s.copying > 0, time.Until(s.until), s.idle
	s.mu.Unlock()
	if !copying || left <= 0 {
		return nil
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
	case <-idle:
	case <-hurry:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
