package fuse

import "sync"

// late is work that calls leave behind. The end of the mount waits for it.
type late struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// Go does work in a goroutine. Calls may still run after the end, and nobody waits for their work.
func (l *late) Go(work func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		go work()
		return
	}
	l.running.Go(work)
}

// end waits for the work that has begun.
func (l *late) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.running.Wait()
}
