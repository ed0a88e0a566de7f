// Package retry tells which errors are worth another attempt, waits between attempts, and makes
// the errors of calls that end without an answer.
//
// A loop over attempts calls IsTransient for each error, and Pause before the next attempt. If
// Pause returns false the context ended, and ContextErrorAfter returns the error.
package retry

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// IsKind compares only the kind of the outermost *moraine.Error: the kind of the failed call,
// not of its causes.
func IsKind(err error, kind moraine.Kind) bool {
	return err != nil && moraine.KindOf(err) == kind
}

// IsTransient reports whether a later attempt, at the same server or another, may succeed after
// err or after no answer.
func IsTransient(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.NotLeader, moraine.Unavailable, moraine.Timeout, moraine.IOError, moraine.Canceled:
		return true
	}
	return false
}

// ContextError returns the error of a call whose context ended: Timeout, Canceled, or the
// context's cause if that is a *moraine.Error.
func ContextError(ctx context.Context, op string) error { return ContextErrorAfter(ctx, op, nil) }

// ContextErrorAfter is ContextError with the last failure before it.
func ContextErrorAfter(ctx context.Context, op string, last error) error {
	kind := moraine.Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = moraine.Timeout
	}
	var m *moraine.Error
	if cause := context.Cause(ctx); errors.As(cause, &m) {
		return cause // the cause of the whole work's end says more
	}
	return &moraine.Error{Op: op, Kind: kind, Err: last}
}

// BadReply returns the error of a request op whose reply lacks the expected content.
func BadReply(op string) error {
	return &moraine.Error{Op: op, Kind: moraine.Internal, Err: fmt.Errorf("the service answered something else")}
}

// Wrap gives an error the operation and the object of a call of the client, instead of those of
// the failed request. It keeps the kind and the cause.
func Wrap(op, ref string, err error) error {
	if err == nil {
		return nil
	}
	var e *moraine.Error
	if errors.As(err, &e) {
		return &moraine.Error{Op: op, Ref: ref, Kind: e.Kind, Err: e.Err}
	}
	return &moraine.Error{Op: op, Ref: ref, Kind: moraine.KindOf(err), Err: err}
}
