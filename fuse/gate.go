package fuse

import (
	"context"
	"sync"
	"time"
)

// gate counts the calls that run, and stops new ones before a daemon leaves its place to the next.
// The kernel sends those that it stopped once more, to the next daemon.
type gate struct {
	mu      sync.Mutex
	running int
	shut    chan struct{} // nil: open. It is closed when the gate opens again
	idle    chan struct{} // closed when no call runs; nil while nobody waits for that
}

// enter begins a call. While the gate is shut it waits.
func (g *gate) enter() {
	for {
		g.mu.Lock()
		shut := g.shut
		if shut == nil {
			g.running++
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		<-shut
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// close shuts the gate. The caller must open it again, or end the process.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// settle returns when no call runs, or after the patience, or when ctx ends.
func (g *gate) settle(ctx context.Context, patience time.Duration) {
	g.mu.Lock()
	if g.running == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-time.After(patience):
	}
}

const (
	// drainPatience is how long a daemon that leaves waits for the calls that run. The next one gets
	// those that still run then, such as waits for a lock.
	drainPatience = 5 * time.Second
	// drainFlush bounds the commit of what was written. New calls wait meanwhile.
	drainFlush = 30 * time.Second
	// answerTime is for the answers on their way to the kernel when the calls are over. The kernel
	// sends a call whose answer comes later once more, as after a crash.
	answerTime = 20 * time.Millisecond
)

// Drain prepares the end of this daemon, for the next one of the same mount: it stops new calls, waits
// for those that run, commits what was written, and sends what was done in delegated directories. Then the process must end at once: the mount and
// the session stay. After an error, which says what could not be committed, the Mount goes on.
func (m *Mount) Drain(ctx context.Context) error {
	g := &m.fs.gate
	g.close()
	g.settle(ctx, drainPatience)
	ctx, cancel := context.WithTimeout(ctx, drainFlush)
	defer cancel()
	err := m.fs.files.flushAll(ctx)
	if err == nil {
		err = m.fs.client.Inodes().Sync(ctx, 0)
	}
	if err != nil {
		g.open()
		return err
	}
	m.fs.files.cleanAll()
	if err := m.fs.files.state.Err(); err != nil {
		g.open()
		return err
	}
	time.Sleep(answerTime)
	return nil
}
