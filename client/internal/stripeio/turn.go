package stripeio

import (
	"context"

	"github.com/morainefs/moraine/internal/limit"
)

// Turn is a lock that can be given up waiting for.
type Turn struct {
	Slot chan struct{} // full while somebody has it
	wait *limit.Resource
}

// NewTurn returns a Turn that nobody has, and that is waited for as wait says.
func NewTurn(wait *limit.Resource) Turn { return Turn{Slot: make(chan struct{}, 1), wait: wait} }

// Lock waits for the turn.
func (t Turn) Lock(ctx context.Context) error {
	return Enter(ctx, t.Slot, t.wait)
}

// Enter puts an element into slots, which bound what r is, and waits for room as r says.
func Enter(ctx context.Context, slots chan<- struct{}, r *limit.Resource) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	return r.Wait(ctx, func(ctx context.Context) error {
		select {
		case slots <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// TryLock takes the turn where nobody has it.
func (t Turn) TryLock() bool {
	select {
	case t.Slot <- struct{}{}:
		return true
	default:
		return false
	}
}

// Taken reports whether somebody has the turn.
func (t Turn) Taken() bool { return len(t.Slot) > 0 }

// Unlock ends the turn.
func (t Turn) Unlock() { <-t.Slot }
