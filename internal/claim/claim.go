// Package claim gives one caller at a time exclusive use of a name; other callers
// that want the same name wait. A name without a claim costs nothing. One path
// through it: Set.Take waits for the name, the caller does its work, and Set.Drop
// lets the next caller continue.
package claim

import (
	"context"
	"sync"
)

// Set is the claimed names. The zero Set is ready; its methods may be called
// concurrently.
type Set[K comparable] struct {
	mu   sync.Mutex
	held map[K]chan struct{} // closed when the claim ends
}

// Take waits until no other caller holds the name. The only error is ctx's.
func (c *Set[K]) Take(ctx context.Context, name K) error {
	for {
		c.mu.Lock()
		wait, taken := c.held[name]
		if !taken {
			if c.held == nil {
				c.held = map[K]chan struct{}{}
			}
			c.held[name] = make(chan struct{})
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Drop ends the caller's claim.
func (c *Set[K]) Drop(name K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[name])
	delete(c.held, name)
}
