package chunkserver

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
)

// repairFloor is what repairs get of --bandwidth-limit in any case, in bytes a second, where
// an eighth of the limit is not less.
const repairFloor = 16 << 20

// bytesFloor is what repairs get of --bandwidth-limit in any case. They take their turn with
// all others; who has the floor goes on without a turn once it has waited for as long as its
// bytes take at the floor's rate, and what it takes is counted, so that the others wait for
// it and the limit holds.
type bytesFloor struct {
	perSecond float64
	turn      chan struct{} // of one place: who has it may use, and change, what follows
	paid      time.Time     // until when the floor has been used up
}

// newBytesFloor has repairFloor, or an eighth of the limit where that is less.
func newBytesFloor(limit int64, now time.Time) *bytesFloor {
	return &bytesFloor{perSecond: float64(min(repairFloor, limit/8)), turn: make(chan struct{}, 1), paid: now}
}

func (f *bytesFloor) lasts(bytes int) time.Duration {
	return time.Duration(float64(bytes) / f.perSecond * float64(time.Second))
}

// takeForRepair is takeBytes for a repair. saved: what the floor did not give before, of a
// chunk at most, counts; it is for requests, whose senders give up after some seconds, so
// that with a low limit one of the next goes through. What this process does by itself waits.
func (n *Neighbour) takeForRepair(ctx context.Context, bytes int, saved bool) error {
	f := n.floor
	select {
	case n.turn <- struct{}{}:
		return n.takeInTurn(ctx, bytes)
	default:
	}
	select {
	case n.turn <- struct{}{}:
		return n.takeInTurn(ctx, bytes)
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	now := n.deps.Clock.Now()
	if least := now.Add(-f.lasts(moraine.MaxChunkSize)); f.paid.Before(least) {
		f.paid = least
	}
	paid := f.paid.Add(f.lasts(bytes))
	due := paid
	if alone := now.Add(f.lasts(bytes)); !saved && due.Before(alone) {
		due = alone
	}
	if wait := due.Sub(now); wait > 0 {
		n.deps.Metrics.HeldBack.WithLabelValues("bandwidth").Inc()
		select {
		case n.turn <- struct{}{}:
			return n.takeInTurn(ctx, bytes)
		case <-n.deps.Clock.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.paid = paid
	n.bytes.ReserveN(n.deps.Clock.Now(), min(bytes, n.bytes.Burst()))
	return ctx.Err()
}
