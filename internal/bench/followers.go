package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	followersDir = "/bench-followers"
	// backPatience is how long a follower may take to come back.
	backPatience = time.Hour
	backPoll     = 100 * time.Millisecond
)

// Followers has files made at a steady rate on a large state. It measures how a
// follower that was killed and down for e.Down comes back from the log. It also
// measures how one that has lost its disk comes back under another name from a
// snapshot. For both it measures the effect on the clients that make the files.
func Followers(ctx context.Context, e *Env) (lines []Line, err error) {
	full, end, err := loadedState(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	e.Progress("a cluster on %d inodes", full.Inodes)
	on, err := full.start(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, full.stop(on)) }()
	p, err := startCreates(ctx, on, followersDir, e.Clients, e.Rate)
	if err != nil {
		return nil, err
	}
	f := &followers{e: e, on: on, pace: p}
	for _, part := range []func(context.Context) ([]Line, error){f.calm, f.away, f.wiped} {
		more, err := part(ctx)
		lines = append(lines, more...)
		if err != nil {
			return lines, errors.Join(err, p.end())
		}
	}
	return lines, p.end()
}

type followers struct {
	e, on *Env
	pace  *pace
}

// phase runs fn while files are made, and returns the latencies of the clients.
func (f *followers) phase(name string, fn func() error) ([]Line, error) {
	f.pace.begin()
	if err := fn(); err != nil {
		return nil, err
	}
	took := f.pace.lap()
	if took.done == 0 {
		return nil, fmt.Errorf("bench: no file was made in %v (%s)", took.wall, name)
	}
	line := func(what, unit string, v float64) Line {
		return Line{Name: f.e.name("followers-" + name + "-" + what), Value: v, Unit: unit}
	}
	return []Line{
		line("create", "ops/s", perSecond(float64(took.done), took.wall)).against(f.pace.rate, "offered"),
		line("p50", "ms", took.at(0.5)), line("p99", "ms", took.at(0.99)), line("worst", "ms", took.at(1)),
	}, nil
}

// calm makes files while all servers run.
func (f *followers) calm(ctx context.Context) ([]Line, error) {
	f.e.Progress("all servers run")
	return f.phase("calm", func() error {
		return errors.Join(sleep(ctx, time.Duration(f.e.Seconds*float64(time.Second))), AllRun(f.on.Cluster))
	})
}

// away kills a follower, and starts it again after e.Down.
func (f *followers) away(ctx context.Context) ([]Line, error) {
	n, err := f.follower(ctx)
	if err != nil {
		return nil, err
	}
	f.e.Progress("%s is down for %v", n.Name, f.e.Down)
	lines, err := f.phase("away", func() error { return errors.Join(n.Kill(), sleep(ctx, f.e.Down)) })
	if err != nil {
		return nil, err
	}
	f.e.Progress("%s is back", n.Name)
	began := time.Now()
	back, err := f.phase("log", func() error { return errors.Join(n.Start(), f.catchUp(ctx, n), AllRun(f.on.Cluster)) })
	if err != nil {
		return lines, err
	}
	took := time.Since(began)
	received, err := received(ctx, n)
	if err == nil && received.snapshots > 0 {
		err = fmt.Errorf("bench: %s got a snapshot, but should have come back from the log", n.Name)
	}
	return append(append(lines, back...), Line{Name: f.e.name("followers-log"), Value: took.Seconds(), Unit: "s"},
		Line{Name: f.e.name("followers-log-entries"), Value: received.entries, Unit: "entries"}), err
}

// wiped removes the disk of a follower, and replaces it with a new server, as
// `moraine metadata replace` does.
func (f *followers) wiped(ctx context.Context) ([]Line, error) {
	old, err := f.follower(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(old.Kill(), os.RemoveAll(filepath.Join(old.Dir, "data"))); err != nil {
		return nil, err
	}
	leader, err := f.on.leading(ctx)
	if err != nil {
		return nil, err
	}
	f.e.Progress("%s has lost its disk", old.Name)
	began := time.Now()
	name := fmt.Sprintf("m%d", loadMembers+1)
	var n *devcluster.Node
	lines, err := f.phase("snapshot", func() (err error) {
		if n, err = f.on.Cluster.AddMetadata(name, leader.Name); err != nil {
			return err
		}
		return f.replace(ctx, old, n)
	})
	if err != nil {
		return nil, err
	}
	took := time.Since(began)
	received, err := received(ctx, n)
	if err == nil && received.snapshots == 0 {
		err = fmt.Errorf("bench: %s got no snapshot", n.Name)
	}
	return append(lines, Line{Name: f.e.name("followers-snapshot"), Value: took.Seconds(), Unit: "s"},
		Line{Name: f.e.name("followers-snapshot-bytes"), Value: received.bytes, Unit: "bytes"}), err
}

// replace makes n a member, waits until it votes, and removes old.
func (f *followers) replace(ctx context.Context, old, n *devcluster.Node) error {
	ctx, cancel := context.WithTimeout(ctx, backPatience)
	defer cancel()
	add := &wire.MetaRequest{Op: &wire.MetaRequest_AddMember{AddMember: &wire.AddMember{Id: n.Name, Address: n.Address}}}
	for {
		reply, err := rawclient.Of(f.pace.asking).Meta(ctx, add)
		if err == nil && slices.ContainsFunc(reply.GetMembers().GetMembers(), func(m *wire.Member) bool { return m.Id == n.Name && m.Voter }) {
			break
		}
		select {
		case <-n.Exited():
			return errors.New(n.Why())
		default:
		}
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err := sleep(ctx, backPoll); err != nil {
			return err
		}
	}
	_, err := rawclient.Of(f.pace.asking).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveMember{RemoveMember: &wire.RemoveMember{Id: old.Name}}})
	return err
}

// follower returns a metadata server that is not the leader.
func (f *followers) follower(ctx context.Context) (*devcluster.Node, error) {
	leader, err := f.on.leading(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range f.on.Cluster.Nodes(devcluster.Metadata) {
		if n != leader && n.Running() {
			return n, nil
		}
	}
	return nil, errors.New("bench: there is no follower")
}

// catchUp waits until n has applied what the leader had applied just before.
func (f *followers) catchUp(ctx context.Context, n *devcluster.Node) error {
	ctx, cancel := context.WithTimeout(ctx, backPatience)
	defer cancel()
	for {
		leader, err := f.on.leading(ctx)
		if err != nil {
			return err
		}
		want, err := received(ctx, leader)
		if err != nil {
			return err
		}
		if have, err := received(ctx, n); err == nil && have.applied >= want.applied {
			return nil
		}
		select {
		case <-n.Exited():
			return errors.New(n.Why())
		default:
		}
		if err := sleep(ctx, backPoll); err != nil {
			return err
		}
	}
}

// progress is how far a metadata server has come since its start.
type progress struct {
	applied, entries, snapshots, bytes float64
}

// received reads from a server's metrics how it got its state.
func received(ctx context.Context, n *devcluster.Node) (progress, error) {
	families, err := scrape(ctx, n.Admin)
	if err != nil {
		return progress{}, err
	}
	p := progress{applied: total(families["moraine_raft_applied_index"]), entries: total(families["moraine_raft_entries_applied_total"]),
		bytes: total(families["moraine_raft_snapshot_received_bytes_total"])}
	for _, m := range families["moraine_raft_snapshots_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetValue() == "received" {
				p.snapshots += m.GetCounter().GetValue()
			}
		}
	}
	return p, nil
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
