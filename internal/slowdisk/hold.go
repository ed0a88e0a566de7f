package slowdisk

import (
	"strings"
	"sync"
)

// hold blocks writes to some files of a Disk.
type hold struct {
	mu      sync.Mutex    // guards the fields below
	until   chan struct{} // closed at the end; nil: nothing is blocked
	path    string        // in the path of blocked files
	waiting int
	lose    bool // blocked writes are dropped
}

// Hold blocks writes to files with path in theirs, until Release or Lose. A process
// that is killed meanwhile ends only then.
func (d *Disk) Hold(path string) {
	h := &d.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until, h.path, h.lose = make(chan struct{}), path, false
}

// Held counts the writes that are blocked now.
func (d *Disk) Held() int {
	d.hold.mu.Lock()
	defer d.hold.mu.Unlock()
	return d.hold.waiting
}

// Release lets blocked writes continue.
func (d *Disk) Release() { d.hold.end(false) }

// Lose makes blocked writes fail, unwritten, as if their process was killed before
// it wrote.
func (d *Disk) Lose() { d.hold.end(true) }

func (h *hold) end(lose bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until != nil {
		h.lose = lose
		close(h.until)
		h.until = nil
	}
}

// pass returns when a write to a file may be made; false: it is lost.
func (h *hold) pass(path string) bool {
	h.mu.Lock()
	until := h.until
	if until == nil || !strings.Contains(path, h.path) {
		h.mu.Unlock()
		return true
	}
	h.waiting++
	h.mu.Unlock()
	<-until
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
	return !h.lose
}
