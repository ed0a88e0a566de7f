package client

import "context"

type lowPriority struct{}

// WithLowPriority marks what is asked of chunkservers under a context as work that nobody
// waits for. It is for movers: a chunkserver has their repairs, and the commits of
// checkpoints, go before their other work. Of other callers it means nothing.
func WithLowPriority(ctx context.Context) context.Context {
	return context.WithValue(ctx, lowPriority{}, true)
}

func isLowPriority(ctx context.Context) bool { return ctx.Value(lowPriority{}) != nil }
