package chunkserver

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
)

// repairFloor is the part of --bandwidth-limit reserved for repairs, in bytes per
// second; an eighth of the limit if that is less.
const repairFloor = 16 << 20

// bytesFloor is the part of --bandwidth-limit reserved for repairs. Repairs queue
// with all other requests. A repair that has waited for as long as its bytes take
// at the floor's rate proceeds without its turn. Its bytes are counted, so that the
// others wait for them and the limit holds.
type bytesFloor struct {
	perSecond float64
	turn      chan struct{} // capacity 1: its holder may use, and change, the fields below
	paid      time.Time     // the time until which the floor is used up
}

// newBytesFloor has repairFloor, or an eighth of the limit if that is less.
func newBytesFloor(limit int64, now time.Time) *bytesFloor {
	return &bytesFloor{perSecond: float64(min(repairFloor, limit/8)), turn: make(chan struct{}, 1), paid: now}
}

func (f *bytesFloor) lasts(bytes int) time.Duration {
	return time.Duration(float64(bytes) / f.perSecond * float64(time.Second))
}

// takeForRepair is takeBytes for a repair. With saved set, unused floor of up to
// one chunk counts. That is for requests: their senders time out after some
// seconds, and with a low limit one of the next requests then succeeds. Work of
// this process waits without it.
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
