package disk

import "sync"

// syncGroup lets the writers of one segment share syncs: all who ask while one
// runs are served by the next, together.
type syncGroup struct {
	token chan struct{} // held by who syncs
	mu    sync.Mutex    // guards next
	next  *syncRound    // who asked since the running sync began; nil where nobody did
}

// syncRound is one sync to come and its outcome.
type syncRound struct {
	done chan struct{}
	err  error // written before done is closed
}

func newSyncGroup() syncGroup { return syncGroup{token: make(chan struct{}, 1)} }

// wait returns the outcome of a run of sync that began after the call. One of
// the callers that it serves runs it.
func (g *syncGroup) wait(sync func() error) error {
	g.mu.Lock()
	if g.next == nil {
		g.next = &syncRound{done: make(chan struct{})}
	}
	round := g.next
	g.mu.Unlock()

	select {
	case <-round.done:
		return round.err
	case g.token <- struct{}{}:
	}
	defer func() { <-g.token }()
	select {
	case <-round.done:
		return round.err
	default:
	}
	// Only the holder of the token closes rounds, so next is still ours. From
	// here on who comes is for the next one: our sync may miss its writes.
	g.mu.Lock()
	g.next = nil
	g.mu.Unlock()
	round.err = sync()
	close(round.done)
	return round.err
}
