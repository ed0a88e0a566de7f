package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/stripeio"
)

// WithLowPriority marks requests to chunkservers under a context as work that no program waits
// for. It is for movers: a chunkserver serves their repairs, and the commits of checkpoints,
// before their other work. It has no effect for other callers.
func WithLowPriority(ctx context.Context) context.Context { return stripeio.WithLowPriority(ctx) }

// WithUrgent marks requests to chunkservers under a context as the repair of a stripe that has
// no redundancy left. A chunkserver then does not throttle them in favour of clients. It is for
// movers and has no effect for other callers.
func WithUrgent(ctx context.Context) context.Context { return stripeio.WithUrgent(ctx) }

// ForJob marks files opened under a context as those of a leased job. It is for movers: a
// chunkserver may read only the files of the jobs that it holds.
func ForJob(ctx context.Context, job moraine.JobID) context.Context { return stripeio.ForJob(ctx, job) }
