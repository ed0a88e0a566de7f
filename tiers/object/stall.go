package object

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// staller is a RoundTripper that cancels a request when no byte has moved in either
// direction for a while. Without it, a store that accepts connections and never
// answers would block its callers, such as the slots of a mover, for ever.
type staller struct {
	next   http.RoundTripper
	after  time.Duration
	timers clock.Timed
}

// timersOf returns what makes the timers of a clock.
func timersOf(c clock.Clock) clock.Timed {
	if t, ok := c.(clock.Timed); ok {
		return t
	}
	return clock.System{}
}

// errStalled is the error of a request that staller cancelled. Whether the store
// has carried it out is unknown.
var errStalled = &moraine.Error{Op: "object", Kind: moraine.Unavailable, Err: errNoByte{}}

type errNoByte struct{}

func (errNoByte) Error() string {
	return "store has accepted and sent no byte of the request for too long"
}

// stall is the timer of one request. Each method is called by one side at a time,
// or is safe for concurrent use, as those of time.Timer are.
type stall struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	after  time.Duration
}

// moved notes that a byte has moved.
func (s *stall) moved(n int) {
	if n > 0 {
		s.timer.Reset(s.after)
	}
}

// end stops the timer. If the request ended by a stall, it returns that error.
func (s *stall) end(err error) error {
	s.timer.Stop()
	if context.Cause(s.ctx) == error(errStalled) {
		err = errStalled
	}
	s.cancel(nil)
	return err
}

// RoundTrip implements http.RoundTripper.
func (t *staller) RoundTrip(req *http.Request) (*http.Response, error) {
	s := &stall{after: t.after}
	s.ctx, s.cancel = context.WithCancelCause(req.Context())
	s.timer = t.timers.AfterFunc(t.after, func() { s.cancel(errStalled) })
	req = req.Clone(s.ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body, req.GetBody = &movingBody{req.Body, s, nil}, nil
	}
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, s.end(err)
	}
	s.moved(1)
	resp.Body = &movingBody{resp.Body, s, func() { _ = s.end(nil) }}
	return resp, nil
}

// movingBody reports each byte that is read; closed, unless nil, is called at the
// end.
type movingBody struct {
	io.ReadCloser
	stall  *stall
	closed func()
}

// Read implements io.Reader.
func (b *movingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.stall.moved(n)
	if err != nil && err != io.EOF && context.Cause(b.stall.ctx) == error(errStalled) {
		err = errStalled
	}
	return n, err
}

// Close implements io.Closer.
func (b *movingBody) Close() error {
	if b.closed != nil {
		b.closed()
	}
	return b.ReadCloser.Close()
}
