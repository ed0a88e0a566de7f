package s3

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3err"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	own "github.com/morainefs/moraine/internal/versity"
)

// requests says what applies to each request of HTTP. That is the level that it
// waits for, the connection of its body, and the form of its error. It has no
// lock: nothing here changes.
type requests struct {
	life    context.Context // see backend
	cl      *client.Client
	level   moraine.Level // without an AckHeader
	stall   time.Duration // Config.StallTimeout
	places  *own.Places
	log     *slog.Logger
	metrics *Metrics
}

// transferOf returns the transfer of a request. The request was signed with the
// key, so its connection is not ended as an unauthenticated one.
func (reqs *requests) transferOf(rc context.Context) transfer {
	t := transfer{patience: reqs.stall, log: reqs.log, metrics: reqs.metrics}
	if r, ok := rc.(*fasthttp.RequestCtx); ok {
		t.conn = r.Conn()
	}
	reqs.places.Proved(rc)
	return t
}

// retryAfter is how long, in seconds, clients should wait before they retry a
// temporary failure.
const retryAfter = 1

// answer turns an error of package client into one of S3; an S3 error stays
// unchanged. It logs errors whose text a caller does not see.
func (reqs *requests) answer(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := err.(s3err.S3Error); ok {
		return s
	}
	kind := moraine.KindOf(err)
	reqs.metrics.Errors.WithLabelValues(kind.String()).Inc()
	e := ofKind(kind)
	if e.StatusCode() >= http.StatusInternalServerError {
		reqs.log.Warn("request failed", "op", op, "err", err)
	}
	if e.StatusCode() == http.StatusServiceUnavailable {
		if rc, ok := ctx.(*fasthttp.RequestCtx); ok {
			rc.Response.Header.Set("Retry-After", strconv.Itoa(retryAfter))
		}
	}
	return e
}
