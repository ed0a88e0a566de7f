package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/procs"
)

const (
	failoverDir = "/bench-failover"
	// failoverKills is how many leaders are killed, failoverClients how many clients
	// wait for the next one each time.
	failoverKills   = 21
	failoverClients = 8
	// failoverWarm is how many operations are done before each kill.
	failoverWarm = 50
)

// Failover counts the elections of a cluster under full load, on which nobody
// does anything that should cause one; then it does each of Env.How to the leader
// again and again, and measures how long it takes until a mutation is acknowledged
// that began after that.
func Failover(ctx context.Context, e *Env) ([]Line, error) {
	if e.Cluster == nil {
		return nil, errors.New("bench: failover kills servers: it needs a cluster of its own, without --endpoint and --path")
	}
	how := e.How
	if len(how) == 0 {
		how = []string{"kill"}
	}
	for _, h := range how {
		if losses[h].lose == nil {
			return nil, fmt.Errorf("bench: a leader that is lost by %q: kill, stop and vanish are possible", h)
		}
	}
	lines, err := e.electionsUnderLoad(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range how {
		gaps, err := e.loseLeaders(ctx, h)
		if err != nil {
			return nil, err
		}
		name := "failover-" + h
		if h == "kill" {
			name = "failover" // as it was called while there was no other
		}
		seconds := make([]float64, len(gaps))
		for i, g := range gaps {
			e.Progress("%s %s: %v", h, g.leader, g.took.Round(time.Millisecond))
			seconds[i] = g.took.Seconds()
		}
		lines = append(lines,
			Line{Name: e.name(name + "-median"), Value: median(seconds), Unit: "s"},
			Line{Name: e.name(name + "-worst"), Value: slices.Max(seconds), Unit: "s"})
	}
	return lines, nil
}

// loss is how a leader is lost, and comes back.
type loss struct{ lose, back func(*procs.Node) error }

var losses = map[string]loss{
	"kill": {(*procs.Node).Kill, (*procs.Node).Start},
	"stop": {
		func(n *procs.Node) error { return n.Signal(syscall.SIGSTOP) },
		func(n *procs.Node) error { return n.Signal(syscall.SIGCONT) },
	},
	"vanish": {(*procs.Node).Vanish, (*procs.Node).Appear},
}

// gap is one time without a leader.
type gap struct {
	leader string
	took   time.Duration
}

func (e *Env) loseLeaders(ctx context.Context, how string) ([]gap, error) {
	var acked atomic.Int64
	g, working := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(working)
	defer stop()
	var asking *client.Client
	for i := range failoverClients {
		c, end, err := e.Connect(ctx)
		if err != nil {
			return nil, err
		}
		defer end() //nolint:errcheck // its session ends with the cluster
		asking = c
		dir, err := c.Mkdir(ctx, fmt.Sprintf("%s/%s-%d", failoverDir, how, i), 0o755)
		if err != nil {
			return nil, err
		}
		g.Go(func() error {
			for n := 0; working.Err() == nil; n++ {
				if _, err := c.CreateEmpty(working, moraine.InodeID(dir.Inode), fmt.Sprintf("file-%07d", n), 0o644); err != nil {
					return err
				}
				acked.Add(1)
			}
			return nil
		})
	}
	var gaps []gap
	g.Go(func() error {
		defer stop()
		for range failoverKills {
			kill, err := e.loseLeader(working, asking, &acked, losses[how])
			if err != nil {
				return err
			}
			gaps = append(gaps, kill)
		}
		return nil
	})
	if err := g.Wait(); err != nil && (len(gaps) < failoverKills || !errors.Is(err, moraine.Canceled)) {
		return nil, err
	}
	return gaps, nil
}

// loseLeader takes the metadata server that leads away, waits until operations go
// on, and has it back.
func (e *Env) loseLeader(ctx context.Context, c *client.Client, acked *atomic.Int64, l loss) (gap, error) {
	if err := waitFor(ctx, acked, acked.Load()+failoverWarm); err != nil {
		return gap{}, err
	}
	if _, err := e.startEnded(ctx); err != nil { // else the next loss is that of the majority
		return gap{}, err
	}
	node, err := e.leader(ctx, c)
	if err != nil {
		return gap{}, err
	}
	began := time.Now()
	if err := l.lose(node); err != nil {
		return gap{}, err
	}
	// Each client may hear of one operation that the lost leader acknowledged.
	waited := waitFor(ctx, acked, acked.Load()+failoverClients+1)
	took := time.Since(began)
	if err := errors.Join(waited, l.back(node)); err != nil { // a process that is stopped cannot be ended well
		return gap{}, err
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = node.Ready(ready)
	if err != nil && !node.Running() { // one that was stopped in an append, for longer than --log-stall
		_, err = e.startEnded(ctx)
	}
	return gap{leader: node.Name, took: took}, err
}

// waitFor waits until the counter has reached n.
func waitFor(ctx context.Context, counter *atomic.Int64, n int64) error {
	end := time.Now().Add(time.Minute)
	for counter.Load() < n {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(end) {
			return errors.New("bench: no operation was acknowledged for a minute")
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
