package transport

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// serverConn is the accepting end of one connection.
//
// One goroutine at a time is its reader. A request without a payload gets a
// goroutine of its own, unless its handler can answer from memory: then the reader
// answers it. The reader itself serves a request with one, and reads the
// payload without a switch of goroutines. After that a fresh goroutine becomes the
// reader, and the old one continues with the request.
type serverConn struct {
	server      *Server
	class       Class
	stream      stream
	r           *reader
	w           *writer
	incarnation uint64 // as of the hello; 0: unknown
	ctx         context.Context
	cancel      context.CancelFunc
	peer        atomic.Pointer[Peer]
	slots       chan struct{} // one for each request that may run
	leave       func()        // ends the connection's share of its certificate's
	routine     goroutines    // reader, requests, writers

	// payloadAt is when the read of a payload began, 0 while none is read.
	payloadAt atomic.Int64

	mu       sync.Mutex // guards the fields below
	requests map[uint64]*request
	inFlight int
	expiry   *time.Timer // runs expire; nil before the first deadline
	expireAt int64       // when expiry fires, 0 when it does not
	goneAway bool
	empty    chan struct{} // closed when no request runs after goneAway
	closed   bool
	err      error

	traffic traffic
}

func newServerConn(ctx context.Context, s *Server, class Class, st stream, r *reader, peer *Peer, limit int, incarnation uint64) *serverConn {
	c := &serverConn{server: s, class: class, stream: st, r: r, incarnation: incarnation, slots: make(chan struct{}, limit),
		requests: make(map[uint64]*request), empty: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.peer.Store(peer)
	c.w = newWriter(st, s.now, c.routine.run, c.close)
	return c
}

// serveUntilClosed reads requests, and returns when the connection and everything
// started on it have ended.
func (c *serverConn) serveUntilClosed() {
	c.routine.run(c.readLoop)
	c.routine.wait()
	c.traffic.report(c.server.metrics, sideServer, c.class, c.w.bytes.Load(), c.r.bytes.Load())
}

// readLoop is the reader, until the connection ends or another goroutine becomes
// the reader.
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

// receive handles the frame after header h. It returns false if another goroutine
// has become the reader.
func (c *serverConn) receive(h *header) (bool, error) {
	switch {
	case h.flags&flagCancel != 0:
		c.mu.Lock()
		q := c.requests[h.id]
		c.mu.Unlock()
		if q != nil {
			q.end(context.Canceled)
		}
		fallthrough
	case h.flags&(flagReply|flagGoAway) != 0, h.kind == KindPing:
		return true, c.r.discard(int(h.messageLen) + int(h.payloadLen))
	}
	select {
	case c.slots <- struct{}{}:
	default:
		c.server.metrics.limited.WithLabelValues(sideServer.String()).Inc()
		if refused, err := c.awaitSlot(h); refused || err != nil {
			return true, err
		}
	}
	message, err := c.r.message(h)
	if err != nil {
		return false, err
	}
	q := newRequest(c, h, message)
	if h.payloadLen == 0 {
		if !q.serveAtOnce() {
			c.server.workers.start(task{c, q})
		}
		return true, nil
	}
	q.payload = &connPayload{conn: c, n: int(h.payloadLen)}
	q.serve()
	if q.payload.used.Load() {
		return false, nil
	}
	return true, c.r.discard(int(h.payloadLen))
}

// awaitSlot takes a slot for the request of header h. If none is free until the
// request's deadline, the request is answered with Timeout: refused.
func (c *serverConn) awaitSlot(h *header) (refused bool, err error) {
	wait := c.server.requestSlots
	if h.deadline > 0 {
		wait.Patience = time.Duration(h.deadline) * time.Millisecond
	}
	late := wait.Enter(c.ctx, c.slots)
	switch {
	case late == nil:
		return false, nil
	case c.ctx.Err() != nil:
		return false, c.ctx.Err()
	}
	if err := c.r.discard(int(h.messageLen) + int(h.payloadLen)); err != nil {
		return true, err
	}
	c.server.metrics.done(sideServer, h.kind, wait.Patience, late)
	c.reply(h, nil, late)
	return true, nil
}

func (c *serverConn) refreshToken(t *wire.RefreshToken) (*Response, error) {
	old := c.peer.Load()
	if old.Token == nil {
		return nil, &moraine.Error{Op: "transport", Ref: old.Node, Kind: moraine.InvalidArgument, Err: fmt.Errorf("connection has no token")}
	}
	token, err := openToken(old.dataKey, t.Token)
	if err != nil {
		return nil, err
	}
	claims, err := c.server.verifyToken(token, old)
	if err != nil {
		return nil, err
	}
	fresh := *old
	fresh.Token = claims
	c.peer.Store(&fresh)
	return &Response{Message: &wire.Done{}}, nil
}

// begin registers a request, so that it can be cancelled and ends in time.
func (c *serverConn) begin(q *request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight++
	if c.goneAway {
		return &moraine.Error{Op: "transport", Ref: c.server.cfg.Node, Kind: moraine.Unavailable, Err: errShutdown}
	}
	c.requests[q.header.id] = q
	if c.expireAt == 0 || q.until < c.expireAt {
		c.expireNextLocked(q.until)
	}
	return nil
}

func (c *serverConn) end(q *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requests, q.header.id)
	c.inFlight--
	c.signalLocked()
}

// expireNextLocked makes expire run at t. One timer serves all requests of a
// connection. Their deadlines come roughly in the order of the requests. So the
// timer is set once in the time that callers wait, not for each request.
func (c *serverConn) expireNextLocked(t int64) {
	c.expireAt = t
	left := time.Duration(t - c.server.now())
	if c.expiry == nil {
		c.expiry = time.AfterFunc(left, c.expire)
	} else {
		c.expiry.Reset(left)
	}
}

// expire ends the requests whose deadline has passed.
func (c *serverConn) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now, next := c.server.now(), int64(0)
	for _, q := range c.requests {
		switch {
		case q.until <= now:
			q.end(context.DeadlineExceeded)
		case next == 0 || q.until < next:
			next = q.until
		}
	}
	c.expireAt = 0
	if next != 0 {
		c.expireNextLocked(next)
	}
}

// signalLocked signals drain when no request runs.
func (c *serverConn) signalLocked() {
	if c.goneAway && c.inFlight == 0 {
		select {
		case <-c.empty:
		default:
			close(c.empty)
		}
	}
}

// reply sends a handler's answer, and ensures that it is released.
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
			err = &moraine.Error{Op: q.kind.String(), Kind: moraine.TooLarge, Err: fmt.Errorf("payload of %d bytes is too large", size)}
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
	how := inline
	if len(c.slots) > 1 {
		how = inCrowd
	}
	// A failed send closes the connection, and releases the payload.
	if size == 0 && resp.Release == nil {
		c.w.sendSmall(head, how) //nolint:errcheck // see above
		return
	}
	c.w.send(&outFrame{head: head, payload: resp.Payload, release: resp.Release}, how) //nolint:errcheck // see above
}

// sendGoAway makes the caller use another connection.
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
		c.w.sendSmall(head, later) //nolint:errcheck // a connection that has ended needs no such news
	}
}

// drained is closed when, after sendGoAway, no request runs.
func (c *serverConn) drained() <-chan struct{} { return c.empty }

// close ends the connection and the contexts of its requests. It may be called
// repeatedly.
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
	for _, q := range c.requests {
		q.end(context.Canceled)
	}
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.mu.Unlock()
	c.cancel()
	c.stream.Close() //nolint:errcheck // a failed close loses nothing
	c.w.stop(lost("", err))
}

// check supervises the connection, every second or so.
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
			c.w.sendSmall(head, later) //nolint:errcheck // a failed write closes the connection
		}
	}
}
