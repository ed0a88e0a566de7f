package agent

import (
	"context"
	"time"
)

// pagesPause is how long a caller of take waits before it tries again to get pages of a tmpfs that is full.
// Nobody says when a process unmaps its memory.
const pagesPause = 200 * time.Millisecond

// pageWait waits for pages of a tmpfs that has fewer than the slots leave: processes keep memory mapped that
// the pool counts no longer, such as tensors that they have read.
type pageWait struct {
	p        *pool
	patience time.Duration
	wait     bool
	over     <-chan time.Time // after patience; nil: it has not waited yet
}

// end gives pages back, or waits a moment. It returns cause if that is of no use.
func (w *pageWait) end(ctx context.Context, spare func() (freed, more bool), cause error) error {
	if w.p.dropFree() {
		return nil
	}
	if freed, _ := spare(); freed {
		return nil
	}
	if !w.wait {
		return cause
	}
	if w.over == nil {
		w.over = time.After(w.patience)
	}
	select {
	case <-time.After(pagesPause):
		return nil
	case <-w.over:
		return cause
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dropFree gives a free slot and its pages back to the node. It reports whether there was one.
func (p *pool) dropFree() bool {
	p.mu.Lock()
	if len(p.free) == 0 {
		p.mu.Unlock()
		return false
	}
	s := p.free[0]
	p.free = p.free[1:]
	p.mu.Unlock()
	s.empty()
	p.discard(s)
	return true
}
