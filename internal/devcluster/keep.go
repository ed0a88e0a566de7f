package devcluster

import (
	"context"
	"time"
)

const (
	// The pause before a process that ended is started again doubles from
	// keepPause to maxKeepPause, and is short again after it ran for that long.
	keepPause    = time.Second
	maxKeepPause = 30 * time.Second
	// stopPatience is how long a process may take to end.
	stopPatience = 10 * time.Second
)

// Keep looks after a process that was started: one that ends is started again,
// after say was told why and in how long. When ctx ends the process is ended,
// and Keep returns.
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
