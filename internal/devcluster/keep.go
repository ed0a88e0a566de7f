package devcluster

import (
	"context"
	"time"
)

const (
	// The pause before a restart of an ended process doubles from keepPause to
	// maxKeepPause, and is short again after the process ran for that long.
	keepPause    = time.Second
	maxKeepPause = 30 * time.Second
	// stopPatience is how long a process may take to end.
	stopPatience = 10 * time.Second
)

// Keep supervises a started process: it restarts one that ends, after it called say
// with the reason and the pause. When ctx ends Keep ends the process, and returns.
func Keep(ctx context.Context, n *Node, say func(why string, pause time.Duration)) error {
	pause, since := keepPause, time.Now()
	for {
		select {
		case <-ctx.Done():
			return n.Stop(stopPatience)
		case <-n.Exited():
		}
		if time.Since(since) >= maxKeepPause {
			pause = keepPause
		}
		say(n.Why(), pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause, since = min(2*pause, maxKeepPause), time.Now()
		if err := n.Start(); err != nil {
			return err
		}
	}
}
