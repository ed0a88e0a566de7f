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

// outcome is the cause inside an error of this package: what happened, and whether
// the request can have changed anything.
type outcome struct {
	err     error
	refused bool
}

func (o *outcome) Error() string { return o.err.Error() }
func (o *outcome) Unwrap() error { return o.err }

// Refused reports whether err, of a method of Bucket, means that the request
// certainly changed nothing and never will. This holds if the store refused it, the
// fence stopped it, or no connection was made. After any other error the store may
// have carried out the request, or may do so later.
func Refused(err error) bool {
	var o *outcome
	return errors.As(err, &o) && o.refused
}

// translate makes a *moraine.Error from an error of the client library.
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

// classifyAnswer interprets an error answer of the store. Only a 4xx means for
// certain that the store refused the request. After a 5xx, or an error inside a
// 200, the store may have carried it out.
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

// unsure removes the certainty from the error of a later request of several: the
// effects of the earlier ones stay.
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

// short is the error of an answer that ended before its length.
func short(got, want int, err error) error {
	return fmt.Errorf("answer ended after %d of %d bytes: %w", got, want, err)
}

// MakeError makes an error like those of the methods of Bucket, for other
// implementations of its contract.
func MakeError(kind moraine.Kind, refused bool, err error) error {
	return &moraine.Error{Op: "object", Kind: kind, Err: &outcome{err: err, refused: refused}}
}
