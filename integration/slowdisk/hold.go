package slowdisk

import (
	"strings"
	"sync"
)

// hold is what holds back writes to some files of a Disk.
type hold struct {
	mu      sync.Mutex    // guards what follows
	until   chan struct{} // closed at the end; nil: nothing is held back
	path    string        // what is held back has it in its path
	waiting int
	lose    bool // what is held back is not written
}

// Hold holds back writes to files with path in theirs, until Release or Lose. A process
// that is killed meanwhile ends only then.
func (d *Disk) Hold(path string) {
	h := &d.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until, h.path, h.lose = make(chan struct{}), path, false
}

// Held counts the writes that are held back now.
func (d *Disk) Held() int {
	d.hold.mu.Lock()
	defer d.hold.mu.Unlock()
	return d.hold.waiting
}

// Release lets what is held back through.
func (d *Disk) Release() { d.hold.end(false) }

// Lose has what is held back fail, unwritten: as of a process that was killed before it
// came to write it.
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
