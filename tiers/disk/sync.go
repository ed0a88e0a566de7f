package disk

import "sync"

// syncGroup lets the writers of one segment share syncs. The next sync serves all
// writers that request one while a sync runs.
type syncGroup struct {
	token chan struct{} // held by the goroutine that syncs
	mu    sync.Mutex    // guards next
	next  *syncRound    // the writers since the running sync began; nil if there are none
}

// syncRound is one future sync and its outcome.
type syncRound struct {
	done chan struct{}
	err  error // written before done is closed
}

func newSyncGroup() syncGroup { return syncGroup{token: make(chan struct{}, 1)} }

// wait returns the outcome of a run of sync that began after the call. One of the
// callers that the sync serves runs it.
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
	// Only the holder of the token closes rounds, so next is still ours. Later
	// callers join the next round: our sync may miss their writes.
	g.mu.Lock()
	g.next = nil
	g.mu.Unlock()
	round.err = sync()
	close(round.done)
	return round.err
}
