package transport

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// serverConn is the accepting end of one connection.
//
// One goroutine at a time is its reader. A request without a payload gets a
// goroutine of its own. A request with one is served by the reader itself,
// which takes the payload off the connection without a switch; once it has, a
// fresh goroutine becomes the reader, and the old one goes on with the request.
type serverConn struct {
	server      *Server
	class       Class
	stream      stream
	r           *reader
	w           *writer
	incarnation uint64 // as of the hello; 0: not known
	ctx         context.Context
	cancel      context.CancelFunc
	peer        atomic.Pointer[Peer]
	slots       chan struct{} // one for each request that may be under way
	routine     goroutines    // reader, requests, writers

	// payloadAt is when the reading of a payload began, 0 while none is read.
	payloadAt atomic.Int64

	mu       sync.Mutex // guards what follows
	requests map[uint64]context.CancelFunc
	inFlight int
	goneAway bool
	empty    chan struct{} // closed when nothing is in flight after goneAway
	closed   bool
	err      error

	traffic traffic
}

func newServerConn(ctx context.Context, s *Server, class Class, st stream, r *reader, peer *Peer, limit int, incarnation uint64) *serverConn {
	c := &serverConn{server: s, class: class, stream: st, r: r, incarnation: incarnation, slots: make(chan struct{}, limit),
		requests: make(map[uint64]context.CancelFunc), empty: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.peer.Store(peer)
	c.w = newWriter(st, s.now, c.routine.run, c.close)
	return c
}

// serveUntilClosed reads requests, and returns when the connection has ended
// with all that began on it.
func (c *serverConn) serveUntilClosed() {
	c.routine.run(c.readLoop)
	c.routine.wait()
	c.traffic.report(c.server.metrics, sideServer, c.class, c.w.bytes.Load(), c.r.bytes.Load())
}

// readLoop is the reader, until the connection ends or another goroutine has
// become it.
func (c *serverConn) readLoop() {
	var h header
	for {
		reader := true
		err := c.r.header(&h)
		if err == nil {
			reader, err = c.receive(&h)
		}
		if err != nil {
			c.close(err)
			return
		}
		if !reader {
			return
		}
	}
}

// receive handles the frame that h begins. It returns false where another
// goroutine has become the reader.
func (c *serverConn) receive(h *header) (bool, error) {
	switch {
	case h.flags&flagCancel != 0:
		c.mu.Lock()
		cancel := c.requests[h.id]
		c.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		fallthrough
	case h.flags&(flagReply|flagGoAway) != 0, h.kind == KindPing:
		return true, c.r.discard(int(h.messageLen) + int(h.payloadLen))
	}
	select {
	case c.slots <- struct{}{}:
	default:
		c.server.metrics.limited.WithLabelValues(sideServer.String()).Inc()
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return false, c.ctx.Err()
		}
	}
	message, err := c.r.message(h)
	if err != nil {
		return false, err
	}
	q := &request{conn: c, header: *h, message: message, began: c.server.now()}
	if h.payloadLen == 0 {
		c.server.workers.start(task{c, q})
		return true, nil
	}
	q.payload = &connPayload{conn: c, n: int(h.payloadLen)}
	q.serve()
	if q.payload.used.Load() {
		return false, nil
	}
	return true, c.r.discard(int(h.payloadLen))
}

// request is one request under way. It is its own context: it ends with the
// connection, at the caller's deadline, or when the caller cancels.
type request struct {
	conn    *serverConn
	header  header
	message *buffer
	payload *connPayload
	peer    *Peer
	began   int64
	context.Context
}

// Value implements context.Context.
func (q *request) Value(key any) any {
	switch key {
	case peerKey{}:
		return q.peer
	case traceKey{}:
		return q.header.trace
	}
	return q.Context.Value(key)
}

// serve answers q.
func (q *request) serve() {
	c := q.conn
	q.peer = c.peer.Load()
	var cancel context.CancelFunc
	if d := q.header.deadline; d > 0 {
		q.Context, cancel = context.WithTimeout(c.ctx, time.Duration(d)*time.Millisecond)
	} else {
		q.Context, cancel = context.WithCancel(c.ctx)
	}
	gauge := c.server.metrics.sides[sideServer].inFlight[c.class]
	gauge.Inc()
	var resp *Response
	err := c.begin(q.header.id, cancel)
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
	cancel()
	c.reply(&q.header, resp, err)
	c.end(q.header.id)
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
		return nil, &moraine.Error{Op: "transport", Kind: moraine.Unimplemented, Err: fmt.Errorf("request kind %d", q.header.kind)}
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
			resp, err = nil, &moraine.Error{Op: q.header.kind.String(), Ref: c.server.cfg.Node, Kind: moraine.Internal, Err: fmt.Errorf("the server failed: %v", v)}
		}
	}()
	req := &Request{Kind: q.header.kind, Class: c.class, Peer: q.peer, Message: m, Trace: q.header.trace}
	if q.payload != nil {
		req.Payload = q.payload
	}
	resp, err = c.server.deps.Handler.Serve(q, req)
	if err == nil && (resp == nil || resp.Message == nil || !resp.Message.ProtoReflect().IsValid()) {
		err = &moraine.Error{Op: q.header.kind.String(), Kind: moraine.Internal, Err: fmt.Errorf("the handler gave no answer")}
	}
	return resp, err
}

// newMessage returns an empty message of a request of kind k, nil for an
// unknown one.
func newMessage(k Kind) proto.Message {
	switch k {
	case KindMeta:
		return new(wire.MetaRequest)
	case KindPutChunk:
		return new(wire.PutChunk)
	case KindGetChunk:
		return new(wire.GetChunk)
	case KindGetPiece:
		return new(wire.GetPiece)
	case KindSyncDevices:
		return new(wire.SyncDevices)
	case KindStatDevices:
		return new(wire.StatDevices)
	case KindRefreshToken:
		return new(wire.RefreshToken)
	}
	return nil
}

// permitted refuses what the connection may no longer do.
func (c *serverConn) permitted(q *request) error {
	if now := c.server.incarnation.Load(); now != c.incarnation && c.incarnation != 0 && now != 0 {
		c.sendGoAway()
		return &moraine.Error{Op: "transport", Ref: c.server.cfg.Node, Kind: moraine.Unavailable,
			Err: fmt.Errorf("the cluster's metadata history changed from %d to %d: connect again", c.incarnation, now)}
	}
	if q.peer.Token == nil || q.header.kind == KindRefreshToken {
		return nil
	}
	if err := checkExpiry(q.peer.Token, c.server.clock.Now()); err != nil {
		return &moraine.Error{Op: "transport", Ref: q.peer.Node, Kind: moraine.Unauthenticated, Err: err}
	}
	return nil
}

func (c *serverConn) refreshToken(t *wire.RefreshToken) (*Response, error) {
	old := c.peer.Load()
	if old.Token == nil {
		return nil, &moraine.Error{Op: "transport", Ref: old.Node, Kind: moraine.InvalidArgument, Err: fmt.Errorf("this connection has no token")}
	}
	claims, err := VerifyToken(t.Token, old, c.server.deps.Keys, c.server.clock.Now())
	if err != nil {
		return nil, err
	}
	fresh := *old
	fresh.Token = claims
	c.peer.Store(&fresh)
	return &Response{Message: &wire.Done{}}, nil
}

// begin makes a request known, so that it can be cancelled.
func (c *serverConn) begin(id uint64, cancel context.CancelFunc) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight++
	if c.goneAway {
		return &moraine.Error{Op: "transport", Ref: c.server.cfg.Node, Kind: moraine.Unavailable, Err: errShutdown}
	}
	c.requests[id] = cancel
	return nil
}

func (c *serverConn) end(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requests, id)
	c.inFlight--
	c.signalLocked()
}

// signalLocked tells who drains that nothing is in flight.
func (c *serverConn) signalLocked() {
	if c.goneAway && c.inFlight == 0 {
		select {
		case <-c.empty:
		default:
			close(c.empty)
		}
	}
}

// reply sends a handler's answer, and sees to it that it is released.
func (c *serverConn) reply(q *header, resp *Response, err error) {
	h := header{class: c.class, kind: q.kind, flags: flagReply, id: q.id, trace: q.trace, incarnation: c.incarnation}
	var head *buffer
	size := 0
	if err == nil {
		for _, p := range resp.Payload {
			size += len(p)
		}
		h.payloadLen = uint32(size)
		if size > MaxPayload {
			err = &moraine.Error{Op: q.kind.String(), Kind: moraine.TooLarge, Err: fmt.Errorf("a payload of %d bytes", size)}
		} else {
			head, err = encodeFrame(&h, resp.Message)
		}
		if err != nil && resp.Release != nil {
			resp.Release()
		}
	}
	if err != nil {
		h.flags |= flagError
		h.payloadLen = 0
		if head, err = encodeFrame(&h, ErrorToWire(err)); err != nil {
			c.close(err) // an error of megabytes
			return
		}
		resp = &Response{}
	}
	// A failed send closes the connection, and releases.
	if size == 0 && resp.Release == nil {
		c.w.sendSmall(head, true) //nolint:errcheck // see above
		return
	}
	c.w.send(&outFrame{head: head, payload: resp.Payload, release: resp.Release}, true) //nolint:errcheck // see above
}

// sendGoAway tells the caller to use another connection.
func (c *serverConn) sendGoAway() {
	c.mu.Lock()
	first := !c.goneAway && !c.closed
	c.goneAway = true
	c.signalLocked()
	c.mu.Unlock()
	if !first {
		return
	}
	if head, err := encodeFrame(&header{class: c.class, kind: KindPing, flags: flagGoAway}, nil); err == nil {
		c.w.sendSmall(head, false) //nolint:errcheck // a connection that has ended needs no such news
	}
}

// drained is closed when, after sendGoAway, nothing is in flight.
func (c *serverConn) drained() <-chan struct{} { return c.empty }

// close ends the connection and, by their contexts, its requests. It may be
// called more than once.
func (c *serverConn) close(err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.err = err
	c.goneAway = true
	c.signalLocked()
	c.mu.Unlock()
	c.cancel()
	c.stream.Close() //nolint:errcheck // nothing is owed on it
	c.w.stop(lost("", err))
}

// check looks after the connection, every second or so.
func (c *serverConn) check(now int64) {
	cfg := &c.server.cfg
	c.traffic.report(c.server.metrics, sideServer, c.class, c.w.bytes.Load(), c.r.bytes.Load())
	c.mu.Lock()
	inFlight := c.inFlight
	c.mu.Unlock()
	since := func(t int64) time.Duration { return time.Duration(now - t) }
	writing, reading := c.w.since.Load(), c.payloadAt.Load()
	switch {
	case writing != 0 && since(writing) > cfg.StallTimeout,
		reading != 0 && since(max(reading, c.r.last.Load())) > cfg.StallTimeout:
		c.server.metrics.dead.WithLabelValues(sideServer.String()).Inc()
		c.close(errStuck)
	case inFlight == 0 && since(c.r.last.Load()) > cfg.IdleTimeout:
		c.close(errIdle)
	case inFlight > 0 && writing == 0 && since(c.w.last.Load()) >= cfg.PingInterval:
		if head, err := encodeFrame(&header{class: c.class, kind: KindPing}, nil); err == nil {
			c.w.sendSmall(head, false) //nolint:errcheck // a failed write closes the connection
		}
	}
}
