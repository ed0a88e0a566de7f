package object

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/morainefs/moraine"
)

// outcome is the cause inside an error of this package: what happened, and
// whether the request can have changed anything.
type outcome struct {
	err     error
	refused bool
}

func (o *outcome) Error() string { return o.err.Error() }
func (o *outcome) Unwrap() error { return o.err }

// Refused reports whether err, of a method of Bucket, means for certain that the
// request changed nothing and never will: the store said no, the fence did not
// let it out, or no connection came about. After any other error the request
// may have been carried out, or be carried out yet.
func Refused(err error) bool {
	var o *outcome
	return errors.As(err, &o) && o.refused
}

// translate makes a *moraine.Error of what the client library returned.
func translate(ctx context.Context, op, ref string, err error) error {
	if err == nil {
		return nil
	}
	kind, refused := classify(ctx, err)
	return &moraine.Error{Op: "object." + op, Ref: ref, Kind: kind, Err: &outcome{err: err, refused: refused}}
}

func classify(ctx context.Context, err error) (kind moraine.Kind, refused bool) {
	var fenced *fencedError
	if errors.As(err, &fenced) {
		return moraine.Fenced, !fenced.begun
	}
	var own *moraine.Error
	if errors.As(err, &own) {
		return own.Kind, false
	}
	var said minio.ErrorResponse
	if errors.As(err, &said) && said.StatusCode != 0 {
		return classifyAnswer(said)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return moraine.Timeout, false
	case ctx.Err() != nil:
		return moraine.Canceled, false
	}
	// No connection: nothing was sent.
	var op *net.OpError
	var dns *net.DNSError
	return moraine.Unavailable, errors.As(err, &dns) || errors.As(err, &op) && op.Op == "dial"
}

// classifyAnswer reads what the store said. Only an answer that blames the
// request is certain: after a 5xx, or an error inside of a 200, the store may
// have done it all the same.
func classifyAnswer(e minio.ErrorResponse) (kind moraine.Kind, refused bool) {
	refused = e.StatusCode >= 400 && e.StatusCode < 500 && e.StatusCode != http.StatusRequestTimeout
	switch e.Code {
	case "NoSuchKey", "NoSuchUpload", "NoSuchBucket", "NoSuchVersion", "NotFound":
		return moraine.NotFound, refused
	case "BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest":
		return moraine.Corrupt, refused
	case "QuotaExceeded", "XMinioStorageFull", "InsufficientStorage":
		return moraine.NoSpace, refused
	case "EntityTooLarge", "KeyTooLongError":
		return moraine.TooLarge, refused
	case "SlowDown", "TooManyRequests", "RequestTimeout", "OperationAborted":
		return moraine.Unavailable, refused
	}
	switch e.StatusCode {
	case http.StatusNotFound:
		return moraine.NotFound, refused
	case http.StatusUnauthorized, http.StatusForbidden:
		return moraine.PermissionDenied, refused
	case http.StatusPreconditionFailed, http.StatusConflict:
		return moraine.Conflict, refused
	case http.StatusInsufficientStorage:
		return moraine.NoSpace, refused
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		return moraine.Unavailable, refused
	}
	if e.StatusCode >= 400 && e.StatusCode < 500 {
		return moraine.InvalidArgument, refused
	}
	return moraine.Unavailable, refused
}

// unsure takes from the error of a later request of several that nothing was
// changed: what the earlier ones did stays.
func unsure(err error) error {
	if !Refused(err) {
		return err
	}
	return &moraine.Error{Op: "object", Kind: moraine.KindOf(err), Err: &outcome{err: err}}
}

func outcomeOf(err error) string {
	if err == nil {
		return "ok"
	}
	return moraine.KindOf(err).String()
}

// short is an answer that ended before its length.
func short(got, want int, err error) error {
	return fmt.Errorf("%d of %d bytes came: %w", got, want, err)
}

// MakeError makes an error as the methods of Bucket return them, for other
// stores that keep its contract.
func MakeError(kind moraine.Kind, refused bool, err error) error {
	return &moraine.Error{Op: "object", Kind: kind, Err: &outcome{err: err, refused: refused}}
}
