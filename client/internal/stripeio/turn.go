package stripeio

import (
	"context"

	"github.com/morainefs/moraine/internal/limit"
)

// Turn is a lock whose wait ends with a context.
type Turn struct {
	Slot chan struct{} // full while a caller has it
	wait *limit.Resource
}

// NewTurn returns a free Turn, for which callers wait as wait says.
func NewTurn(wait *limit.Resource) Turn { return Turn{Slot: make(chan struct{}, 1), wait: wait} }

// Lock waits for the turn.
func (t Turn) Lock(ctx context.Context) error {
	return t.wait.Enter(ctx, t.Slot)
}

// TryLock takes the turn if it is free.
func (t Turn) TryLock() bool {
	select {
	case t.Slot <- struct{}{}:
		return true
	default:
		return false
	}
}

// Taken reports whether a caller has the turn.
func (t Turn) Taken() bool { return len(t.Slot) > 0 }

// Unlock ends the turn.
func (t Turn) Unlock() { <-t.Slot }
