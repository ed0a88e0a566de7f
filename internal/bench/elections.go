package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
)

const (
	// ShippedLogStall is devcluster.Config.LogStall of a benchmark's cluster.
	// Servers step down as early as in production, so the figure is that of
	// production.
	ShippedLogStall = -1
	// burnersPerCPU is how many goroutines per processor only compute while
	// elections are counted.
	burnersPerCPU = 2
)

// AllRun returns nil if every metadata server of the cluster runs. A server that
// stepped down was not measured, and the figure of the others is not one of three.
func AllRun(c *devcluster.Cluster) error {
	var errs []error
	for _, n := range c.Nodes(devcluster.Metadata) {
		if !n.Running() {
			errs = append(errs, fmt.Errorf("bench: a metadata server ended during the run, so the figure is invalid: %s", n.Why()))
		}
	}
	return errors.Join(errs...)
}

// electionsUnderLoad has all clients create files while every processor also
// computes, and counts the elections of the metadata servers.
func (e *Env) electionsUnderLoad(ctx context.Context) ([]Line, error) {
	if err := e.mkdir(ctx, failoverDir); err != nil {
		return nil, err
	}
	e.Progress("%d clients create and %d goroutines compute for %v s; elections", e.Clients, burnersPerCPU*runtime.NumCPU(), e.Seconds)
	before, err := e.servers().elections(ctx)
	if err != nil {
		return nil, err
	}
	results, u, err := e.createWhileBurning(ctx)
	if err != nil {
		return nil, err
	}
	after, err := e.servers().elections(ctx)
	if err != nil {
		return nil, err
	}
	var changes, silences float64
	for name, n := range after {
		changes += n.changes - before[name].changes
		silences += n.silences - before[name].silences
	}
	ended, err := e.startEnded(ctx)
	return []Line{
		e.opsLine("create-under-load", results[0], u),
		{Name: e.name("elections-under-load"), Value: changes, Unit: "elections"},
		{Name: e.name("silences-under-load"), Value: silences, Unit: "silences"},
		{Name: e.name("ended-under-load"), Value: float64(ended), Unit: "servers"},
	}, err
}

func (e *Env) createWhileBurning(ctx context.Context) ([]Result, usage, error) {
	burning, stop := context.WithCancel(ctx)
	defer stop()
	for range burnersPerCPU * runtime.NumCPU() {
		go burn(burning)
	}
	return e.run(ctx, []Work{{Op: OpCreate, Path: failoverDir, Clients: e.Clients, Seconds: e.Seconds}})
}

// elected is how often a server became the leader, and how often, as a follower, it
// found its leader silent for too long.
type elected struct{ changes, silences float64 }

// elections returns the elections that each running metadata server has seen.
func (s servers) elections(ctx context.Context) (map[string]elected, error) {
	seen := map[string]elected{}
	for _, n := range s.Nodes(devcluster.Metadata) {
		families, err := scrape(ctx, n.Admin)
		if !n.Running() {
			continue
		}
		if err != nil {
			return nil, err // without its counts the difference would be wrong
		}
		seen[n.Name] = elected{total(families["moraine_raft_leader_changes_total"]), total(families["moraine_raft_leader_silent_total"])}
	}
	return seen, nil
}

// startEnded starts the metadata servers that ended by themselves, as a process
// supervisor would, and returns how many there were.
func (e *Env) startEnded(ctx context.Context) (ended int, err error) {
	for _, n := range e.Cluster.Nodes(devcluster.Metadata) {
		if n.Running() {
			continue
		}
		ended++
		e.Progress("%s", n.Why())
		ready, cancel := context.WithTimeout(ctx, time.Minute)
		err = errors.Join(err, n.Start(), n.Ready(ready))
		cancel()
	}
	return ended, err
}

// burn computes until ctx ends.
func burn(ctx context.Context) {
	var x uint64
	for ctx.Err() == nil {
		for range 1 << 20 {
			x = x*6364136223846793005 + 1
		}
	}
	runtime.KeepAlive(x)
}
