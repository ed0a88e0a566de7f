package disk

import (
	"context"
	"sync"

	"github.com/morainefs/moraine"
)

// claims lets one change at a time be made to a chunk, so that the order of its
// records in the log is the order of its changes in the index.
type claims struct {
	mu   sync.Mutex
	held map[moraine.ChunkID]chan struct{} // closed when the claim ends
}

func newClaims() claims { return claims{held: map[moraine.ChunkID]chan struct{}{}} }

// take waits until nobody else holds the chunk. The only error is ctx's.
func (c *claims) take(ctx context.Context, id moraine.ChunkID) error {
	for {
		c.mu.Lock()
		wait, taken := c.held[id]
		if !taken {
			c.held[id] = make(chan struct{})
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

func (c *claims) drop(id moraine.ChunkID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held[id])
	delete(c.held, id)
}
