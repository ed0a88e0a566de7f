package transport

import "sync"

// goroutines counts the goroutines of an owner, so that it can wait for them. The
// zero value is ready. Unlike with a WaitGroup, run may be called during wait.
type goroutines struct {
	mu   sync.Mutex
	n    int
	idle *sync.Cond
}

func (g *goroutines) run(f func()) {
	g.begin()
	go func() {
		defer g.end()
		f()
	}()
}

// begin counts work that another goroutine does for the owner, until end.
func (g *goroutines) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

func (g *goroutines) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		g.idle.Broadcast()
	}
}

// wait returns when none is left.
func (g *goroutines) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle == nil {
		g.idle = sync.NewCond(&g.mu)
	}
	for g.n > 0 {
		g.idle.Wait()
	}
}
