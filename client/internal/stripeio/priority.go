package stripeio

import (
	"context"

	"github.com/morainefs/moraine"
)

type priorityKey struct{}

type priority int

const (
	normalPriority priority = iota
	lowPriority
	urgentPriority
)

// WithLowPriority marks requests to chunkservers under a context as work that no program waits
// for. It is for movers: a chunkserver serves their repairs, and the commits of checkpoints,
// before their other work. It has no effect for other callers.
func WithLowPriority(ctx context.Context) context.Context {
	return context.WithValue(ctx, priorityKey{}, lowPriority)
}

// WithUrgent marks requests to chunkservers under a context as the repair of a stripe that has
// no redundancy left. A chunkserver then does not throttle them in favour of clients. It is for
// movers and has no effect for other callers.
func WithUrgent(ctx context.Context) context.Context {
	return context.WithValue(ctx, priorityKey{}, urgentPriority)
}

func priorityOf(ctx context.Context) priority {
	p, _ := ctx.Value(priorityKey{}).(priority)
	return p
}

func isLowPriority(ctx context.Context) bool { return priorityOf(ctx) == lowPriority }

func isUrgent(ctx context.Context) bool { return priorityOf(ctx) == urgentPriority }

type jobKey struct{}

// ForJob marks files opened under a context as those of a leased job. It is for movers: a
// chunkserver may read only the files of the jobs that it holds.
func ForJob(ctx context.Context, job moraine.JobID) context.Context {
	return context.WithValue(ctx, jobKey{}, job)
}

// JobOf returns the job that ForJob has marked a context with, 0 for none.
func JobOf(ctx context.Context) moraine.JobID {
	job, _ := ctx.Value(jobKey{}).(moraine.JobID)
	return job
}
