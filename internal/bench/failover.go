package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/devcluster"
)

const (
	failoverDir = "/bench-failover"
	// failoverKills is how many leaders are killed, failoverClients how many
	// clients wait for the next one each time.
	failoverKills   = 21
	failoverClients = 8
	// failoverWarm is how many operations run before each kill.
	failoverWarm = 50
)

// Failover counts the elections of a cluster under full load, without anything that
// should cause one. Then it stops the leader repeatedly in each way of Env.How. It
// measures how long it takes until a mutation that began after that is
// acknowledged. It does so first without leases, and then with leases, when the
// next leader waits for clients that may hold some.
func Failover(ctx context.Context, e *Env) ([]Line, error) {
	if e.Cluster == nil {
		return nil, errors.New("bench: failover kills servers and needs a cluster of its own: leave out --endpoint and --path")
	}
	how := e.How
	if len(how) == 0 {
		how = []string{"kill"}
	}
	for _, h := range how {
		if losses[h].lose == nil {
			return nil, fmt.Errorf("bench: unknown way %q to lose a leader: use kill, stop or vanish", h)
		}
	}
	lines, err := e.electionsUnderLoad(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range how {
		for _, leases := range []bool{false, true} {
			more, err := (&leaderLosses{Env: e, how: h, leases: leases}).lines(ctx)
			if err != nil {
				return nil, err
			}
			lines = append(lines, more...)
		}
	}
	return lines, nil
}

// leaderLosses stops leaders in one way, with leases or without.
type leaderLosses struct {
	*Env
	how    string
	leases bool
	hands  *hands // the clients
}

// lines measures the gaps.
func (l *leaderLosses) lines(ctx context.Context) ([]Line, error) {
	name := "failover"
	if l.how != "kill" { // its name dates from when it was the only way
		name += "-" + l.how
	}
	if l.leases {
		name += "-leases"
	}
	gaps, err := l.gaps(ctx, "/"+name)
	if err != nil {
		return nil, err
	}
	seconds := make([]float64, len(gaps))
	for i, g := range gaps {
		l.Progress("%s %s: %v", name, g.leader, g.took.Round(time.Millisecond))
		seconds[i] = g.took.Seconds()
	}
	return []Line{
		{Name: l.name(name + "-median"), Value: median(seconds), Unit: "s"},
		{Name: l.name(name + "-worst"), Value: slices.Max(seconds), Unit: "s"},
	}, nil
}

// loss is how a leader is lost, and restored.
type loss struct{ lose, back func(*devcluster.Node) error }

var losses = map[string]loss{
	"kill": {(*devcluster.Node).Kill, (*devcluster.Node).Start},
	"stop": {
		func(n *devcluster.Node) error { return n.Signal(syscall.SIGSTOP) },
		func(n *devcluster.Node) error { return n.Signal(syscall.SIGCONT) },
	},
	"vanish": {(*devcluster.Node).Vanish, (*devcluster.Node).Appear},
}

// gap is one time without a leader.
type gap struct {
	leader string
	took   time.Duration
}

// gaps loses leaders one after the other.
func (l *leaderLosses) gaps(ctx context.Context, dir string) ([]gap, error) {
	h, end, err := connectHands(ctx, l.Env, failoverDir+dir, l.leases)
	defer end()
	if err != nil {
		return nil, err
	}
	l.hands = h
	working, stop := context.WithCancel(ctx)
	defer stop()
	g, working := errgroup.WithContext(working)
	for i, c := range h.workers {
		g.Go(func() error { return h.work(working, c, h.dirs[i]) })
	}
	var gaps []gap
	g.Go(func() error {
		defer stop()
		for range failoverKills {
			kill, err := l.lose(working, losses[l.how])
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

// lose stops the leading metadata server, waits until operations continue,
// and restores it.
func (l *leaderLosses) lose(ctx context.Context, way loss) (gap, error) {
	h := l.hands
	if err := waitFor(ctx, &h.acked, h.acked.Load()+failoverWarm); err != nil {
		return gap{}, err
	}
	if _, err := l.startEnded(ctx); err != nil { // otherwise the next loss is that of the majority
		return gap{}, err
	}
	node, err := l.servers().leader(ctx, h.workers[0])
	if err == nil {
		err = awaitStandings(ctx, node, h.standings)
	}
	if err != nil {
		return gap{}, err
	}
	began := time.Now()
	if err := way.lose(node); err != nil {
		return gap{}, err
	}
	// Each client may still get the answer to one operation that the lost leader
	// acknowledged.
	waited := waitFor(ctx, &h.acked, h.acked.Load()+failoverClients+1)
	took := time.Since(began)
	if err := errors.Join(waited, way.back(node)); err != nil { // a stopped process cannot end cleanly
		return gap{}, err
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = node.Ready(ready)
	if err != nil && !node.Running() { // one that was stopped in an append, for longer than --log-stall
		_, err = l.startEnded(ctx)
	}
	return gap{leader: node.Name, took: took}, err
}
