package agent

import (
	"context"
	"sync"
	"time"
)

// yieldFor is how long the flush stands still, at most, while trainers copy into slots; it then goes
// on for as long at least. A rank that is stopped between Begin and Seal costs no more than that.
const yieldFor = time.Second

// yield lets the copies of the trainers go before the writes to the cluster: training stands still for
// the first, and nobody waits for the second. Its methods may be called concurrently.
type yield struct {
	mu      sync.Mutex
	copying int           // trainers between Begin and Seal
	until   time.Time     // of this standstill
	idle    chan struct{} // closed when nobody copies
}

// begin says that a trainer copies, until the returned function is called.
func (y *yield) begin() (end func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.copying++; y.copying == 1 {
		y.idle = make(chan struct{})
	}
	if now := time.Now(); now.After(y.until.Add(yieldFor)) {
		y.until = now.Add(yieldFor)
	}
	return sync.OnceFunc(func() {
		y.mu.Lock()
		defer y.mu.Unlock()
		if y.copying--; y.copying == 0 {
			close(y.idle)
		}
	})
}

// wait returns when no trainer copies, when the standstill has lasted long enough, or when somebody is
// in a hurry.
func (y *yield) wait(ctx context.Context, hurry <-chan struct{}) error {
	y.mu.Lock()
	copying, left, idle := y.copying > 0, time.Until(y.until), y.idle
	y.mu.Unlock()
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
