package main

import (
	"context"
	"sync"
)

// team adds up what the ranks have of one number, as all-reduce does.
type team struct {
	world int

	mu    sync.Mutex
	round *round
}

// round is one sum in progress.
type round struct {
	parts [blocks]float64
	left  int
	sum   float64
	done  chan struct{} // closed when sum is set
}

func newTeam(world int) *team { return &team{world: world, round: newRound(world)} }

func newRound(world int) *round { return &round{left: world, done: make(chan struct{})} }

// sum gives the losses of some blocks, and returns the sum over all blocks when all ranks have
// called it.
func (t *team) sum(ctx context.Context, first int, losses []float64) (float64, error) {
	t.mu.Lock()
	r := t.round
	copy(r.parts[first:], losses)
	if r.left--; r.left == 0 {
		for _, part := range r.parts {
			r.sum += part
		}
		t.round = newRound(t.world)
		close(r.done)
	}
	t.mu.Unlock()
	select {
	case <-r.done:
		return r.sum, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
