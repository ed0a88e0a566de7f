package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// request is one running request. It is its own context, which ends with the
// connection, at the caller's deadline, or when the caller cancels. The standard
// library's context would cost a timer and two allocations for each request,
// although hardly any request reaches its deadline. (A context that a handler
// derives from it costs a goroutine, since the library does not know this type.)
type request struct {
	conn    *serverConn
	header  header
	message *buffer
	decoded proto.Message // nil: not yet
	payload *connPayload
	peer    *Peer
	// began is the arrival of the request and until its deadline, in nanoseconds of
	// the connection's clock.
	began, until int64

	mu   sync.Mutex // guards the fields below
	err  error
	done chan struct{} // nil until the first wait
}

var _ context.Context = (*request)(nil)

// longestRequest limits the deadline of a request. Callers of this build always send a deadline
// of minutes. Without a limit, a request could occupy what it waits for as long as its caller
// likes.
const longestRequest = time.Hour

// newRequest returns the request that h begins, which has just been read.
func newRequest(c *serverConn, h *header, message *buffer) *request {
	q := &request{conn: c, header: *h, message: message, began: c.r.last.Load()}
	wait := longestRequest
	if h.deadline > 0 {
		wait = min(wait, time.Duration(h.deadline)*time.Millisecond)
	}
	q.until = q.began + int64(wait)
	return q
}

// Deadline implements context.Context.
func (q *request) Deadline() (deadline time.Time, ok bool) {
	return time.Now().Add(time.Duration(q.until - q.conn.server.now())), true
}

// Done implements context.Context.
func (q *request) Done() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.done == nil {
		q.done = make(chan struct{})
		if q.err != nil {
			close(q.done)
		}
	}
	return q.done
}

// Err implements context.Context.
func (q *request) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Value implements context.Context.
func (q *request) Value(key any) any {
	switch key {
	case peerKey{}:
		return q.peer
	case traceKey{}:
		return q.header.trace
	}
	return q.conn.ctx.Value(key)
}

// end ends the context, unless it has ended.
func (q *request) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return
	}
	q.err = err
	if q.done != nil {
		close(q.done)
	}
}

// serve answers q.
func (q *request) serve() {
	c := q.conn
	q.peer = c.peer.Load()
	c.server.metrics.sides[sideServer].inFlight[c.class].Inc()
	var resp *Response
	err := c.begin(q)
	if err == nil {
		resp, err = q.handle()
	}
	q.finish(resp, err)
}

// finish sends the answer of q, which has begun.
func (q *request) finish(resp *Response, err error) {
	c := q.conn
	q.message.release()
	if err == nil && len(resp.Payload) > 0 && q.Err() != nil {
		// The caller has gone: it would only read the payload to drop it.
		if resp.Release != nil {
			resp.Release()
		}
		resp, err = nil, q.Err()
	}
	q.end(context.Canceled)
	c.reply(&q.header, resp, err)
	c.end(q)
	c.server.metrics.sides[sideServer].inFlight[c.class].Dec()
	c.server.metrics.done(sideServer, q.header.kind, time.Duration(c.server.now()-q.began), err)
	<-c.slots
}

// handle decodes the message and calls the handler.
func (q *request) handle() (resp *Response, err error) {
	c := q.conn
	if err := c.permitted(q); err != nil {
		return nil, err
	}
	m, err := q.decode()
	if err != nil {
		return nil, err
	}
	if t, ok := m.(*wire.RefreshToken); ok {
		return c.refreshToken(t)
	}
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, q.panicked(v)
		}
	}()
	req := q.toHandler(m)
	if q.payload != nil {
		req.Payload = q.payload
	}
	resp, err = c.server.deps.Handler.Serve(q, req)
	if err == nil && (resp == nil || resp.Message == nil || !resp.Message.ProtoReflect().IsValid()) {
		err = &moraine.Error{Op: q.header.kind.String(), Kind: moraine.Internal, Err: fmt.Errorf("handler gave no answer")}
	}
	return resp, err
}

// toHandler is q with message m, as handlers see it.
func (q *request) toHandler(m proto.Message) *Request {
	return &Request{Kind: q.header.kind, Class: q.conn.class, Peer: q.peer, Message: m, Trace: q.header.trace}
}

// panicked reports a panic of the handler, and returns its answer.
func (q *request) panicked(v any) error {
	s := q.conn.server
	s.metrics.panics.Inc()
	s.log.Error("handler panicked", "kind", q.header.kind.String(), "trace", q.header.trace.String(), "panic", v, "stack", string(debug.Stack()))
	return &moraine.Error{Op: q.header.kind.String(), Ref: s.cfg.Node, Kind: moraine.Internal, Err: fmt.Errorf("server failed: %v", v)}
}

// serveAtOnce answers q, which has no payload, if that needs no waiting. It returns false if
// it has not answered: then serve must.
func (q *request) serveAtOnce() bool {
	c := q.conn
	h := c.server.atOnce
	if h == nil || !q.header.kind.info().cached {
		return false
	}
	q.peer = c.peer.Load()
	if c.permitted(q) != nil {
		return false
	}
	m, err := q.decode()
	if err != nil {
		return false
	}
	resp, err := q.tryAtOnce(h, m)
	if resp == nil && err == nil {
		return false
	}
	c.server.metrics.sides[sideServer].inFlight[c.class].Inc()
	if err == nil {
		if err = c.begin(q); err != nil {
			resp.Release()
		}
	} else {
		c.begin(q) //nolint:errcheck // it is answered with the handler's error
	}
	q.finish(resp, err)
	return true
}

// tryAtOnce calls the handler; nil and no error: it has done nothing.
func (q *request) tryAtOnce(h atOnceHandler, m proto.Message) (resp *Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, q.panicked(v)
		}
	}()
	return h.serveAtOnce(q, q.toHandler(m)), nil
}

// decode returns the message of q. It decodes it once.
func (q *request) decode() (proto.Message, error) {
	if q.decoded != nil {
		return q.decoded, nil
	}
	m := newMessage(q.header.kind)
	if m == nil {
		return nil, &moraine.Error{Op: "transport", Kind: moraine.Unimplemented, Err: fmt.Errorf("unknown request kind %d", q.header.kind)}
	}
	if err := proto.Unmarshal(q.message.b, m); err != nil {
		return nil, &moraine.Error{Op: q.header.kind.String(), Kind: moraine.InvalidArgument, Err: err}
	}
	q.decoded = m
	return m, nil
}

// permitted refuses what the connection is no longer allowed to do.
func (c *serverConn) permitted(q *request) error {
	if now := c.server.incarnation(); now != c.incarnation && c.incarnation != 0 && now != 0 {
		c.sendGoAway()
		return &moraine.Error{Op: "transport", Ref: c.server.cfg.Node, Kind: moraine.Unavailable,
			Err: fmt.Errorf("metadata incarnation changed from %d to %d: connect again", c.incarnation, now)}
	}
	if q.peer.Token == nil || q.header.kind == KindRefreshToken {
		return nil
	}
	if err := checkExpiry(q.peer.Token, c.server.clock.Now()); err != nil {
		return &moraine.Error{Op: "transport", Ref: q.peer.Node, Kind: moraine.Unauthenticated, Err: err}
	}
	return nil
}
