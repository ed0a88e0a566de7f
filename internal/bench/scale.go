package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// scaleRounds is how often creates and stats are measured on either state, in
	// turn; the median counts.
	scaleRounds = 3
	// emptyInodes is the size of the state that the large one is compared with: as
	// many files as stats need.
	emptyInodes = 1000
	scaleDir    = "/bench-scale"
	// leadPatience is how long a cluster may take to serve on a large state.
	leadPatience = 5 * time.Minute
)

// Scale starts a cluster of three metadata servers on a large state, and another on
// an almost empty one. It measures the disk and memory of the first, and how long a
// snapshot and a restart take. It also measures creates and look-ups per second on
// either, in turn, through the service.
func Scale(ctx context.Context, e *Env) (lines []Line, err error) {
	full, end, err := loadedState(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	empty, err := emptyState(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(empty.dir)) }()
	e.Progress("a cluster on %d inodes, and one on %d", full.Inodes, empty.Inodes)
	onFull, err := full.start(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, full.stop(onFull)) }()
	onEmpty, err := empty.start(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, empty.stop(onEmpty)) }()
	s := &scale{e: e, full: sized{full, onFull}, empty: sized{empty, onEmpty}}
	for _, measure := range []func(context.Context) ([]Line, error){s.rates, s.sizes, s.snapshot, s.restart} {
		more, err := measure(ctx)
		if err = errors.Join(err, AllRun(onFull.Cluster), AllRun(onEmpty.Cluster)); err != nil {
			return lines, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// sized is a cluster on a loaded state.
type sized struct {
	*loaded
	on *Env
}

type scale struct {
	e           *Env
	full, empty sized
}

// emptyState makes the state that the large one is compared with.
func emptyState(ctx context.Context, e *Env) (*loaded, error) {
	own := *e
	own.State, own.Inodes = filepath.Join(e.Dir, "empty"), emptyInodes
	if _, err := Load(ctx, &own); err != nil {
		return nil, err
	}
	return findLoaded(own.State)
}

// rates measures creates and stats.
func (s *scale) rates(ctx context.Context) ([]Line, error) {
	for _, c := range []sized{s.full, s.empty} {
		if err := c.on.mkdir(ctx, scaleDir); err != nil {
			return nil, err
		}
	}
	var lines []Line
	for _, m := range []struct {
		line string
		op   Op
	}{{"scale-create", OpCreate}, {"scale-stat", OpStatLoaded}} {
		var full, empty []Line
		for round := range scaleRounds {
			for _, c := range []struct {
				sized
				to *[]Line
			}{{s.empty, &empty}, {s.full, &full}} {
				s.e.Progress("%s on %d inodes, round %d", m.op, c.Inodes, round+1)
				line, err := c.rate(ctx, m.line, m.op, round)
				if err != nil {
					return nil, err
				}
				*c.to = append(*c.to, line)
			}
		}
		lines = append(lines, medianLine(full).against(medianLine(empty).Value, "empty state"))
	}
	return lines, nil
}

// rate measures one operation, by all clients concurrently.
func (c sized) rate(ctx context.Context, name string, op Op, round int) (Line, error) {
	results, u, err := c.on.run(ctx, []Work{{Op: op, Path: fmt.Sprintf("%s/round-%d", scaleDir, round), Clients: c.on.Clients, Seconds: c.on.Seconds, Loaded: c.Files}})
	if err != nil {
		return Line{}, err
	}
	return c.on.opsLine(name, results[0], u), nil
}

// medianLine returns the line of the median value.
func medianLine(lines []Line) Line {
	values := make([]float64, len(lines))
	for i, l := range lines {
		values[i] = l.Value
	}
	middle := median(values)
	best := lines[0]
	for _, l := range lines {
		if abs(l.Value-middle) < abs(best.Value-middle) {
			best = l
		}
	}
	return best
}

func abs(x float64) float64 { return max(x, -x) }

// sizes returns the disk use of the state, and the memory of the leader's process,
// after the rates.
func (s *scale) sizes(ctx context.Context) ([]Line, error) {
	bytes, err := s.full.bytes()
	if err != nil {
		return nil, err
	}
	var rss [2]float64
	for i, c := range []sized{s.full, s.empty} {
		leader, err := c.on.leading(ctx)
		if err != nil {
			return nil, err
		}
		rss[i] = residentBytes(leader.Pid())
	}
	inodes := float64(s.full.Inodes)
	return []Line{
		{Name: s.e.name("scale-inodes"), Value: inodes, Unit: "inodes"},
		{Name: s.e.name("scale-disk"), Value: bytes / inodes, Unit: "bytes/inode"},
		Line{Name: s.e.name("scale-memory"), Value: rss[0], Unit: "bytes"}.against(rss[1], "empty state"),
		{Name: s.e.name("scale-memory-inode"), Value: rss[0] / inodes, Unit: "bytes/inode"},
	}, nil
}

// snapshot makes the leader take a snapshot of the state.
func (s *scale) snapshot(ctx context.Context) ([]Line, error) {
	s.e.Progress("a snapshot")
	c, end, err := s.full.on.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer end() //nolint:errcheck // its session ends with the cluster
	began := time.Now()
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{}}})
	if err != nil {
		return nil, err
	}
	return []Line{
		{Name: s.e.name("scale-snapshot"), Value: time.Since(began).Seconds(), Unit: "s"},
		{Name: s.e.name("scale-snapshot-bytes"), Value: float64(resp.GetReadBackup().GetSize()), Unit: "bytes"},
	}, nil
}

// restart kills all servers at once and starts them again.
func (s *scale) restart(ctx context.Context) ([]Line, error) {
	s.e.Progress("a restart")
	nodes := s.full.on.Cluster.Nodes(devcluster.Metadata)
	for _, n := range nodes {
		if err := n.Kill(); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	for _, n := range nodes {
		if err := n.Start(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, leadPatience)
	defer cancel()
	for _, n := range nodes {
		if err := n.Ready(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.full.on.mkdir(ctx, scaleDir+"/restarted"); err != nil {
		return nil, err
	}
	return []Line{{Name: s.e.name("scale-restart"), Value: time.Since(began).Seconds(), Unit: "s"}}, nil
}

// leading returns the leading metadata server.
func (e *Env) leading(ctx context.Context) (*devcluster.Node, error) {
	c, end, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer end() //nolint:errcheck // its session ends with the cluster
	return e.servers().leader(ctx, c)
}
