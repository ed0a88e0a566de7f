// Package retry tells which errors are worth another attempt, waits between attempts, and
// makes the errors of calls that end without an answer.
//
// A loop over attempts asks IsTransient of each error, and Pause before the next attempt;
// where Pause returns false the context ended, and ContextErrorAfter is the error.
package retry

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// IsKind is errors.Is for the kind of the outermost *moraine.Error only: the
// kind that the failed call answered with, not one of its causes.
func IsKind(err error, kind moraine.Kind) bool {
	return err != nil && moraine.KindOf(err) == kind
}

// IsTransient reports whether a server that answered err, or did not answer,
// may serve the same request later, or another server may now.
func IsTransient(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.NotLeader, moraine.Unavailable, moraine.Timeout, moraine.IOError, moraine.Canceled:
		return true
	}
	return false
}

// ContextError is the error of a call whose context ended.
func ContextError(ctx context.Context, op string) error { return ContextErrorAfter(ctx, op, nil) }

// ContextErrorAfter is ContextError with the last failure that was met before.
func ContextErrorAfter(ctx context.Context, op string, last error) error {
	kind := moraine.Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = moraine.Timeout
	}
	var m *moraine.Error
	if cause := context.Cause(ctx); errors.As(cause, &m) {
		return cause // why the whole work was ended says more
	}
	return &moraine.Error{Op: op, Kind: kind, Err: last}
}

func BadReply(op string) error {
	return &moraine.Error{Op: op, Kind: moraine.Internal, Err: fmt.Errorf("the service answered something else")}
}

// Wrap gives an error the operation and the object of a call of this package,
// in place of those of the request that failed, and keeps its kind and cause.
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
