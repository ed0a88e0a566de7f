package bench

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// readHedged measures a cold read while one chunkserver hangs: it is stopped when
// the clock starts, and continues when the work is done.
func readHedged(ctx context.Context, e *Env, healthy Line) ([]Line, error) {
	n := e.Cluster.Node("n3")
	line, help, err := e.read(ctx, "read-hedged", func() (func() error, error) {
		return func() error { return n.Signal(syscall.SIGCONT) }, n.Signal(syscall.SIGSTOP)
	})
	if err != nil {
		return nil, err
	}
	if err := n.Ready(ctx); err != nil {
		return nil, err
	}
	if help.Hedged == 0 || help.Rebuilt == 0 {
		return nil, fmt.Errorf("bench: with a chunkserver that hangs, %d chunks were hedged and %d stripes rebuilt: no read used that chunkserver", help.Hedged, help.Rebuilt)
	}
	return []Line{line.against(healthy.Value, e.name("read")),
		{Name: e.name("read-hedges"), Value: float64(help.Hedged), Unit: "late chunks"},
		{Name: e.name("read-hedges-won"), Value: float64(help.HedgesWon), Unit: "stripes"}}, nil
}

// readDegraded measures a cold read with two dead chunkservers, which stay dead.
func readDegraded(ctx context.Context, e *Env, healthy Line) ([]Line, error) {
	for _, name := range []string{"n2", "n5"} {
		if err := e.Cluster.Node(name).Kill(); err != nil {
			return nil, err
		}
	}
	line, help, err := e.read(ctx, "read-degraded", nil)
	if err != nil {
		return nil, err
	}
	if help.Rebuilt == 0 {
		return nil, errors.New("bench: nothing was rebuilt from parity with two chunkservers dead")
	}
	return []Line{line.against(healthy.Value, e.name("read"))}, nil
}
