package lead

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

const (
	// MaxWait bounds how long a request waits for an event.
	MaxWait = 30 * time.Second
	// ReplyTime is the part of a caller's deadline reserved for sending the answer.
	ReplyTime = 100 * time.Millisecond
)

// ErrStopped answers a command whose result this server cannot know because it stopped leading.
var ErrStopped = &moraine.Error{Op: "metadata.propose", Kind: moraine.Unavailable,
	Err: fmt.Errorf("this server stopped leading; whether the command took effect is unknown")}

// ContextError returns the error for an ended ctx.
func ContextError(op string, ctx context.Context) error {
	kind := moraine.Canceled
	if ctx.Err() == context.DeadlineExceeded {
		kind = moraine.Timeout
	}
	return &moraine.Error{Op: op, Kind: kind, Err: ctx.Err()}
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, c clock.Clock, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-c.After(d):
	}
}

// Pause waits for d, or until p (may be nil) is set. It returns false if ctx has ended.
func (t *Term) Pause(ctx context.Context, p Poke, d time.Duration) bool {
	if d > 0 {
		select {
		case <-p:
		case <-t.Clock.After(d):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// WaitUntil returns when a waiting request must be answered: in time for its caller's deadline,
// whatever wait it requests.
func (t *Term) WaitUntil(ctx context.Context, millis uint64) time.Time {
	now := t.Clock.Now()
	until := now.Add(time.Duration(min(millis, uint64(MaxWait.Milliseconds()))) * time.Millisecond)
	if deadline, ok := ctx.Deadline(); ok {
		if before := deadline.Add(-ReplyTime); before.Before(until) {
			return before
		}
	}
	return until
}

// Await waits until fired is closed or d has passed. It fails if the caller's ctx ends or this
// server stops leading.
func (t *Term) Await(ctx context.Context, fired <-chan struct{}, d time.Duration) error {
	select {
	case <-fired:
		return nil
	case <-t.Clock.After(d):
		return nil
	case <-ctx.Done():
		return ContextError("metadata", ctx)
	case <-t.Done:
		return t.NotLeader()
	}
}
