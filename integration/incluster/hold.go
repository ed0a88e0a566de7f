package incluster

import (
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine/internal/vfs"
)

// Hold blocks writes of chunkservers to their segments, so that data acknowledged
// meanwhile is only in memory. Its Rule is an Option of the cluster. The zero value
// blocks nothing. Methods may be called concurrently.
type Hold struct {
	mu    sync.Mutex
	until chan struct{} // closed at the end; nil: nothing is blocked
	bound *time.Timer   // ends it
}

// Rule is an Options.Rule.
func (h *Hold) Rule(_ string, op vfs.Op) error {
	if op.Kind != vfs.OpWrite || !strings.Contains(op.Path, "segments") {
		return nil
	}
	h.mu.Lock()
	until := h.until
	h.mu.Unlock()
	if until != nil {
		<-until
	}
	return nil
}

// Begin blocks until End, and for a minute at most. A process that waits for a
// mount of its own, which waits for this, could not even be killed. If writes are
// already blocked, they stay so for a minute from now.
func (h *Hold) Begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil {
		h.until = make(chan struct{})
	} else {
		h.bound.Stop()
	}
	var bound *time.Timer
	bound = time.AfterFunc(time.Minute, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.bound == bound { // otherwise that minute belonged to another hold
			h.end()
		}
	})
	h.bound = bound
}

// End passes everything.
func (h *Hold) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end()
}

// end is End; the mutex is held.
func (h *Hold) end() {
	if h.until == nil {
		return
	}
	h.bound.Stop()
	close(h.until)
	h.until, h.bound = nil, nil
}

// On reports whether writes are blocked.
func (h *Hold) On() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until != nil
}
