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
	gauge := c.server.metrics.sides[sideServer].inFlight[c.class]
	gauge.Inc()
	var resp *Response
	err := c.begin(q)
	if err == nil {
		resp, err = q.handle()
	}
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
	gauge.Dec()
	c.server.metrics.done(sideServer, q.header.kind, time.Duration(c.server.now()-q.began), err)
	<-c.slots
}

// handle decodes the message and calls the handler.
func (q *request) handle() (resp *Response, err error) {
	c := q.conn
	if err := c.permitted(q); err != nil {
		return nil, err
	}
	m := newMessage(q.header.kind)
	if m == nil {
		return nil, &moraine.Error{Op: "transport", Kind: moraine.Unimplemented, Err: fmt.Errorf("unknown request kind %d", q.header.kind)}
	}
	if err := proto.Unmarshal(q.message.b, m); err != nil {
		return nil, &moraine.Error{Op: q.header.kind.String(), Kind: moraine.InvalidArgument, Err: err}
	}
	if t, ok := m.(*wire.RefreshToken); ok {
		return c.refreshToken(t)
	}
	defer func() {
		if v := recover(); v != nil {
			c.server.metrics.panics.Inc()
			c.server.log.Error("handler panicked", "kind", q.header.kind.String(), "trace", q.header.trace.String(), "panic", v, "stack", string(debug.Stack()))
			resp, err = nil, &moraine.Error{Op: q.header.kind.String(), Ref: c.server.cfg.Node, Kind: moraine.Internal, Err: fmt.Errorf("server failed: %v", v)}
		}
	}()
	req := &Request{Kind: q.header.kind, Class: c.class, Peer: q.peer, Message: m, Trace: q.header.trace}
	if q.payload != nil {
		req.Payload = q.payload
	}
	resp, err = c.server.deps.Handler.Serve(q, req)
	if err == nil && (resp == nil || resp.Message == nil || !resp.Message.ProtoReflect().IsValid()) {
		err = &moraine.Error{Op: q.header.kind.String(), Kind: moraine.Internal, Err: fmt.Errorf("handler gave no answer")}
	}
	return resp, err
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
