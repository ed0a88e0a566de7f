package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
)

const (
	// leaseIdlers is how many idle clients hold leases, if leases are on, like
	// unused mounts. Half of the working clients hold leases then too.
	leaseIdlers = failoverClients / 2
	// standPatience is how long clients may take to find a new leader.
	standPatience = time.Minute
)

// hands are the clients of a cluster whose leaders are lost: those that make files,
// and those that only hold leases.
type hands struct {
	workers   []*client.Client
	dirs      []moraine.InodeID // of each worker
	standings int               // how many clients hold leases
	acked     atomic.Int64      // files made
}

// connectHands connects the clients; end closes the connected ones, on an error too.
func connectHands(ctx context.Context, e *Env, dir string, leases bool) (h *hands, end func(), err error) {
	h = &hands{}
	var ends []func() error
	end = func() {
		for _, end := range ends {
			_ = end() // its session ends with the cluster
		}
	}
	join := func(connect func(context.Context) (*client.Client, func() error, error)) (*client.Client, error) {
		c, end, err := connect(ctx)
		if err == nil {
			ends = append(ends, end)
		}
		return c, err
	}
	if err := e.mkdir(ctx, dir); err != nil {
		return nil, end, err
	}
	for i := range failoverClients {
		connect, holds := e.Connect, leases && i%2 == 1
		if holds {
			connect, h.standings = e.ConnectCached, h.standings+1
		}
		c, err := join(connect)
		if err != nil {
			return nil, end, err
		}
		own, err := c.Mkdir(ctx, fmt.Sprintf("%s/client-%d", dir, i), 0o755)
		if err != nil {
			return nil, end, err
		}
		h.workers, h.dirs = append(h.workers, c), append(h.dirs, own.Inode())
		if holds {
			if err := listAll(ctx, c, dir); err != nil {
				return nil, end, err
			}
		}
	}
	for range leaseIdlers {
		if !leases {
			break
		}
		c, err := join(e.ConnectCached)
		if err == nil {
			err = listAll(ctx, c, dir)
		}
		if err != nil {
			return nil, end, err
		}
		h.standings++
	}
	return h, end, nil
}

// listAll lists a directory, and thereby takes leases of it.
func listAll(ctx context.Context, c *client.Client, dir string) error {
	for _, err := range c.ReadDir(ctx, dir) {
		if err != nil {
			return err
		}
	}
	return nil
}

// work makes files until ctx ends.
func (h *hands) work(ctx context.Context, c *client.Client, dir moraine.InodeID) error {
	for n := 0; ctx.Err() == nil; n++ {
		if _, err := c.Inodes().CreateEmpty(ctx, dir, fmt.Sprintf("file-%07d", n), 0o644); err != nil {
			return err
		}
		h.acked.Add(1)
	}
	return nil
}

// awaitStandings waits until so many sessions hold leases of the leader, so that
// the next leader has clients to wait for.
func awaitStandings(ctx context.Context, leader *devcluster.Node, want int) error {
	for end := time.Now().Add(standPatience); want > 0; {
		families, err := scrape(ctx, leader.Admin)
		if err == nil && total(families["moraine_metadata_lease_sessions"]) >= float64(want) {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(err, fmt.Errorf("bench: fewer than %d sessions hold leases of %s", want, leader.Name))
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
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
