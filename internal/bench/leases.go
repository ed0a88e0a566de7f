package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

const (
	leasesDir = "/bench-leases"
	// leaseDialers is how many sessions are opened, or list, concurrently.
	leaseDialers = 16
	// leaseSettle is how long nothing is measured after sessions were opened, or
	// leases taken, until the effects are over, on the leader too.
	leaseSettle = 3 * time.Second
)

// Leases opens e.Sessions sessions, each with connections of its own, that hold
// e.Leases leases each. It measures their cost for the leading metadata server:
// keeping sessions alive, renewing leases each second, and open recall requests. It
// compares this with the cost of the same sessions without leases.
func Leases(ctx context.Context, e *Env) ([]Line, error) {
	if e.Cluster == nil {
		return nil, errors.New("bench: leases measures the process of the leader and needs a cluster of its own: leave out --endpoint and --path")
	}
	dir, err := e.leaseDir(ctx)
	if err != nil {
		return nil, err
	}
	e.Progress("%d sessions", e.Sessions)
	sessions, end, err := e.openSessions(ctx)
	defer end()
	if err != nil {
		return nil, err
	}
	idle, err := e.watchLeader(ctx, sessions[0])
	if err != nil {
		return nil, err
	}
	e.Progress("%d leases each", e.Leases)
	if err := eachSession(ctx, sessions, func(ctx context.Context, c *client.Client) error {
		for _, err := range c.Inodes().ReadDir(ctx, dir) {
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	held, err := e.watchLeader(ctx, sessions[0])
	if err != nil {
		return nil, err
	}
	if want := float64(e.Sessions * e.Leases); held.leases < want {
		return nil, fmt.Errorf("bench: the sessions have %.0f leases, not %.0f", held.leases, want)
	}
	return []Line{
		{Name: e.name("leases-sessions"), Value: held.sessions, Unit: "sessions"},
		{Name: e.name("leases-held"), Value: held.leases, Unit: "leases"},
		Line{Name: e.name("leases-cpu"), Value: held.cpu, Unit: "cpu-s/s"}.against(idle.cpu, "no leases"),
		Line{Name: e.name("leases-memory"), Value: held.memory, Unit: "bytes"}.against(idle.memory, "no leases"),
	}, nil
}

// leaseDir makes a directory of e.Leases directories: each has a lease of its own,
// and a listing takes them all.
func (e *Env) leaseDir(ctx context.Context) (moraine.InodeID, error) {
	c, end, err := e.Connect(ctx)
	if err != nil {
		return 0, err
	}
	defer end() //nolint:errcheck // its session ends with the cluster
	top, err := c.Mkdir(ctx, leasesDir, 0o755)
	if err != nil {
		return 0, err
	}
	dir := top.Inode()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(leaseDialers)
	for i := range e.Leases {
		g.Go(func() error {
			_, err := c.Inodes().Mkdir(ctx, dir, fmt.Sprintf("dir-%07d", i), client.NodeOptions{Mode: 0o755})
			return err
		})
	}
	return dir, g.Wait()
}

// openSessions opens e.Sessions sessions; end closes the opened ones, on an error
// too.
func (e *Env) openSessions(ctx context.Context) (sessions []*client.Client, end func(), err error) {
	sessions = make([]*client.Client, e.Sessions)
	ends := make([]func() error, e.Sessions)
	end = func() {
		var g errgroup.Group
		g.SetLimit(leaseDialers)
		for _, end := range ends {
			if end != nil {
				g.Go(end)
			}
		}
		_ = g.Wait() // a session that could not be closed ends with the cluster
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(leaseDialers)
	for i := range sessions {
		g.Go(func() (err error) {
			sessions[i], ends[i], err = e.ConnectCached(ctx)
			return err
		})
	}
	return sessions, end, g.Wait()
}

func eachSession(ctx context.Context, sessions []*client.Client, fn func(context.Context, *client.Client) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(leaseDialers)
	for _, c := range sessions {
		g.Go(func() error { return fn(ctx, c) })
	}
	return g.Wait()
}

// leaderCost is the cost of the leader's process while it only gets heartbeats.
type leaderCost struct {
	cpu              float64 // seconds a second
	memory           float64 // resident, in bytes
	sessions, leases float64
}

// watchLeader measures the leading metadata server for e.Seconds.
func (e *Env) watchLeader(ctx context.Context, c *client.Client) (leaderCost, error) {
	if err := pause(ctx, leaseSettle); err != nil {
		return leaderCost{}, err
	}
	leader, err := e.servers().leader(ctx, c)
	if err != nil {
		return leaderCost{}, err
	}
	pid, began := leader.Pid(), time.Now()
	used := processCPU(pid)
	if err := pause(ctx, time.Duration(e.Seconds*float64(time.Second))); err != nil {
		return leaderCost{}, err
	}
	cost := leaderCost{cpu: perSecond(processCPU(pid)-used, time.Since(began)), memory: residentBytes(pid)}
	families, err := scrape(ctx, leader.Admin)
	if err != nil {
		return leaderCost{}, err
	}
	cost.sessions, cost.leases = total(families["moraine_metadata_lease_sessions"]), total(families["moraine_metadata_leases"])
	if still, err := e.servers().leader(ctx, c); err != nil || still != leader {
		return leaderCost{}, errors.Join(err, errors.New("bench: the leader changed during the measurement"))
	}
	return cost, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
