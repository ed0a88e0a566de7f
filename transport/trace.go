package transport

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/morainefs/moraine"
)

type traceKey struct{}

// WithTrace returns a context whose requests carry the trace id t.
func WithTrace(ctx context.Context, t moraine.UUID) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the trace id of ctx, zero if it has none.
func TraceFrom(ctx context.Context) moraine.UUID {
	t, _ := ctx.Value(traceKey{}).(moraine.UUID)
	return t
}

// traceOf is the trace id of ctx, or a new one.
func traceOf(ctx context.Context) moraine.UUID {
	t := TraceFrom(ctx)
	if t.IsZero() {
		binary.LittleEndian.PutUint64(t[:8], rand.Uint64())
		binary.LittleEndian.PutUint64(t[8:], rand.Uint64())
	}
	return t
}

// millisLeft is the time left in ctx, rounded up, at least 1; 0 without a deadline.
func millisLeft(ctx context.Context) uint32 {
	t, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	left := (time.Until(t) + time.Millisecond - 1) / time.Millisecond
	return uint32(min(max(left, 1), math.MaxUint32))
}
