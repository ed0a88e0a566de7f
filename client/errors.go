package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// isKind is errors.Is for the kind of the outermost *moraine.Error only: the
// kind that the failed call answered with, not one of its causes.
func isKind(err error, kind moraine.Kind) bool {
	return err != nil && moraine.KindOf(err) == kind
}

// isTransient reports whether a server that answered err, or did not answer,
// may serve the same request later, or another server may now.
func isTransient(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.NotLeader, moraine.Unavailable, moraine.Timeout, moraine.IOError, moraine.Canceled:
		return true
	}
	return false
}

// contextError is the error of a call whose context ended.
func contextError(ctx context.Context, op string) error { return contextErrorAfter(ctx, op, nil) }

// contextErrorAfter is contextError with the last failure that was met before.
func contextErrorAfter(ctx context.Context, op string, last error) error {
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

func badReply(op string) error {
	return &moraine.Error{Op: op, Kind: moraine.Internal, Err: fmt.Errorf("the service answered something else")}
}

// opName names a request in errors.
func opName(req *wire.MetaRequest) string {
	name := fmt.Sprintf("%T", req.GetOp())
	return strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
}

// wrap gives an error the operation and the object of a call of this package,
// in place of those of the request that failed, and keeps its kind and cause.
func wrap(op, ref string, err error) error {
	if err == nil {
		return nil
	}
	var e *moraine.Error
	if errors.As(err, &e) {
		return &moraine.Error{Op: op, Ref: ref, Kind: e.Kind, Err: e.Err}
	}
	return &moraine.Error{Op: op, Ref: ref, Kind: moraine.KindOf(err), Err: err}
}
