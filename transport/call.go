package transport

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// Call is one request from the caller's side.
type Call struct {
	Kind    Kind
	Class   Class
	Message proto.Message
	// Payload follows the message. It is not copied, must not change until the call
	// returns, and is not read afterwards.
	Payload [][]byte
	// Reply receives the reply's message.
	Reply proto.Message
	// Dst receives the reply's payload, which must fit. Nothing writes to it after
	// the call has returned.
	Dst []byte
	// Each, if not nil, is called with consecutive pieces of Dst as they arrive, as
	// by Payload.ReadInto, and never after the call has returned.
	Each func(piece []byte)
}

// Caller sends requests to one server. Call returns the length of the reply's
// payload.
type Caller interface {
	Call(ctx context.Context, c *Call) (received int, err error)
}

// clientConn is the calling end of one connection.
//
// A goroutine reads (readLoop). A call in calls belongs to the one that deletes
// it from there. That is the reader, which then delivers a reply, or the
// caller, which has stopped waiting; never both. While the reader fills a
// caller's buffer, the caller cannot leave: it requests the release of the
// buffer (divert) and waits.
type clientConn struct {
	pool        *Pool
	peer        *peer
	class       Class
	addr        string
	stream      stream
	r           *reader
	w           *writer
	remote      Peer
	dataKey     []byte            // as Peer.dataKey
	own         *x509.Certificate // certificate that opened it; nil in mode insecure
	incarnation uint64
	slots       chan struct{} // one for each request that the server accepts concurrently

	busy    atomic.Int32           // calls that chose this connection
	pending atomic.Int64           // bytes of unanswered requests
	lastUse atomic.Int64           // when a call last chose this connection
	shown   atomic.Pointer[[]byte] // last token that the server has seen
	showing atomic.Bool            // a goroutine presents the current token
	lastID  atomic.Uint64

	mu     sync.Mutex // guards the fields below
	calls  map[uint64]*call
	err    error
	closed bool
	goAway bool
	owed   int64 // when the first call began after the last bytes from the server

	current *call // being received; used only by the reader
	traffic traffic
}

// call is a running Call.
type call struct {
	*Call
	frame  outFrame
	size   int64
	done   chan struct{} // gets one value when reply or err is set
	reply  *buffer
	isErr  bool
	n      int
	err    error
	paid   bool // the request has a payload, and frame is in use
	freed  bool // the request's payload is free, and frame.done is consumed
	divert atomic.Bool
}

var calls = sync.Pool{New: func() any {
	return &call{done: make(chan struct{}, 1), frame: outFrame{done: make(chan struct{}, 1)}}
}}

// inlineBytes is how many bytes may be in flight to a server for a caller still to
// write by itself. So few bytes fit in the sockets' buffers that the write does not
// block, and the caller can leave when its context ends.
const inlineBytes = 64 << 10

// errNotSent means that the connection ended before any byte of a request was sent:
// the request may use another connection.
type errNotSent struct{ error }

func (e errNotSent) Unwrap() error { return e.error }

// do sends c and waits for its reply.
func (c *clientConn) do(ctx context.Context, req *Call) (int, error) {
	select {
	case c.slots <- struct{}{}:
	default:
		c.pool.metrics.limited.WithLabelValues(sideClient.String()).Inc()
		if err := c.pool.slots.Enter(ctx, c.slots); err != nil {
			return 0, err
		}
	}
	defer func() { <-c.slots }()
	cl := calls.Get().(*call)
	cl.Call = req
	id, err := c.start(ctx, cl)
	if err != nil {
		cl.recycle()
		return 0, err
	}
	select {
	case <-cl.done:
	case <-ctx.Done():
		c.cancel(id, cl)
	}
	if cl.paid && !cl.freed {
		// An early answer: the payload may still be being sent.
		select {
		case <-cl.frame.done:
		case <-ctx.Done():
			cl.freed = true
			c.w.abandon(&cl.frame)
		}
	}
	c.pending.Add(-cl.size)
	n, err := cl.result(ctx, c.addr)
	cl.recycle()
	return n, err
}

// start registers and sends cl. On error neither happened.
func (c *clientConn) start(ctx context.Context, cl *call) (uint64, error) {
	h := header{class: c.class, kind: cl.Kind, trace: traceOf(ctx), incarnation: c.incarnation, deadline: millisLeft(ctx)}
	payload := 0
	for _, p := range cl.Payload {
		payload += len(p)
	}
	if payload > MaxPayload {
		return 0, &moraine.Error{Op: cl.Kind.String(), Kind: moraine.TooLarge, Err: fmt.Errorf("payload of %d bytes exceeds %d", payload, MaxPayload)}
	}
	h.payloadLen = uint32(payload)
	h.id = c.lastID.Add(1)
	head, err := encodeFrame(&h, cl.Message)
	if err != nil {
		return 0, err
	}
	cl.size = int64(len(head.b) + payload)
	cl.paid = payload > 0
	how := later
	if c.pending.Add(cl.size) <= inlineBytes {
		how = inline
		if c.busy.Load() > 1 {
			how = inCrowd
		}
	}
	if err := c.register(h.id, cl); err != nil {
		head.release()
		c.pending.Add(-cl.size)
		return 0, err
	}
	// A failed send means that the connection ends: close then ends every
	// registered call, including this one.
	if !cl.paid {
		c.w.sendSmall(head, how) //nolint:errcheck // see above
	} else {
		cl.frame.head, cl.frame.payload = head, cl.Payload
		c.w.send(&cl.frame, how) //nolint:errcheck // see above
	}
	return h.id, nil
}

func (c *clientConn) register(id uint64, cl *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errNotSent{c.err}
	case c.goAway:
		return errNotSent{lost(c.addr, errShutdown)}
	}
	if c.owed <= c.r.last.Load() {
		c.owed = c.pool.now()
	}
	c.calls[id] = cl
	return nil
}

// cancel ends a call whose caller stops waiting. When it returns, the call is over,
// and nothing writes to its Dst.
func (c *clientConn) cancel(id uint64, cl *call) {
	c.mu.Lock()
	mine := c.calls[id] == cl
	if mine {
		delete(c.calls, id)
	}
	c.mu.Unlock()
	if !mine { // the reader, or close, ends it
		cl.divert.Store(true)
		c.stream.SetReadDeadline(aLongTimeAgo) //nolint:errcheck // fails only on a closed connection, which ends the call
		<-cl.done
		return
	}
	cl.err = errGaveUp
	if cl.paid {
		cl.freed = true
		if !c.w.abandon(&cl.frame) {
			return
		}
	}
	head, err := encodeFrame(&header{class: c.class, kind: cl.Kind, flags: flagCancel, id: id}, nil)
	if err == nil {
		c.w.sendSmall(head, later) //nolint:errcheck // a connection that has ended cancels by itself
	}
}

// errGaveUp means that the caller's context ended.
var errGaveUp = context.Canceled

// result returns the result of the call.
func (cl *call) result(ctx context.Context, addr string) (int, error) {
	if cl.reply != nil {
		defer cl.reply.release()
	}
	switch {
	case cl.err == errGaveUp:
		return 0, gaveUp(ctx, cl.Kind.String(), addr)
	case cl.err != nil:
		return 0, cl.err
	case cl.isErr:
		var e wire.Error
		if err := proto.Unmarshal(cl.reply.b, &e); err != nil {
			return 0, badReply(cl.Kind, addr, err)
		}
		return 0, ErrorFromWire(&e)
	}
	if cl.Reply != nil {
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(cl.reply.b, cl.Reply); err != nil {
			return 0, badReply(cl.Kind, addr, err)
		}
	}
	return cl.n, nil
}

func badReply(k Kind, addr string, err error) error {
	return &moraine.Error{Op: k.String(), Ref: addr, Kind: moraine.Internal, Err: fmt.Errorf("reply: %w", err)}
}

func (cl *call) recycle() {
	if cl.freed {
		return // the writer may still hold the frame, but not its payload
	}
	*cl = call{done: cl.done, frame: outFrame{done: cl.frame.done}}
	calls.Put(cl)
}

// readLoop delivers replies until the connection ends.
func (c *clientConn) readLoop() {
	c.r.interrupted = c.onInterrupt
	var h header
	for {
		err := c.r.header(&h)
		if err == nil {
			err = c.receive(&h)
		}
		if err != nil {
			c.close(err)
			return
		}
	}
}

// onInterrupt runs in the reader when a caller requests its buffer back.
func (c *clientConn) onInterrupt() error {
	if err := c.stream.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if cl := c.current; cl != nil && cl.divert.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// receive handles the frame after header h.
func (c *clientConn) receive(h *header) error {
	if h.flags&flagGoAway != 0 {
		c.mu.Lock()
		c.goAway = true
		c.mu.Unlock()
	}
	var cl *call
	if h.flags&flagReply != 0 {
		c.mu.Lock()
		cl = c.calls[h.id]
		delete(c.calls, h.id)
		c.mu.Unlock()
	}
	if cl == nil { // a ping, the reply to a cancelled call, or an unknown frame
		return c.r.discard(int(h.messageLen) + int(h.payloadLen))
	}
	return c.deliver(h, cl)
}

// deliver reads a reply for cl, and ends cl.
func (c *clientConn) deliver(h *header, cl *call) error {
	reply, err := c.r.message(h)
	if err != nil {
		cl.end(lost(c.addr, err))
		return err
	}
	cl.reply, cl.isErr = reply, h.flags&flagError != 0
	n := int(h.payloadLen)
	if n > len(cl.Dst) {
		cl.end(&moraine.Error{Op: cl.Kind.String(), Ref: c.addr, Kind: moraine.Internal,
			Err: fmt.Errorf("reply of %d bytes exceeds the requested %d", n, len(cl.Dst))})
		return c.r.discard(n)
	}
	got, err := c.readPayload(cl, n)
	if err != nil {
		cl.end(lost(c.addr, err))
		return err
	}
	if got < n { // diverted
		cl.end(errGaveUp)
		return c.r.discard(n - got)
	}
	cl.n = n
	cl.end(nil)
	return nil
}

func (cl *call) end(err error) {
	cl.err = err
	cl.done <- struct{}{}
}

// readPayload reads n bytes into cl.Dst, or fewer if the caller stops waiting.
func (c *clientConn) readPayload(cl *call, n int) (int, error) {
	c.current = cl
	defer func() { c.current = nil }()
	return c.r.payloadUntil(cl.Dst[:n], cl.Each, &cl.divert)
}

// close ends the connection and every call on it with err. It may be called
// repeatedly.
func (c *clientConn) close(err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.err = lost(c.addr, err)
	ended := c.calls
	c.calls = nil
	c.mu.Unlock()
	c.stream.Close() //nolint:errcheck // a failed close loses nothing
	c.w.stop(c.err)
	for _, cl := range ended {
		cl.end(c.err)
	}
	c.pool.onClosed(c)
}

// usable reports whether new calls may use the connection.
func (c *clientConn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && !c.goAway
}

// check supervises the connection, every second or so.
func (c *clientConn) check(now int64, cfg *PoolConfig) {
	c.mu.Lock()
	closed, owed, goAway := c.closed, c.owed, c.goAway
	c.mu.Unlock()
	// A cancelled call still counts as unanswered: callers with short deadlines
	// must not keep a dead connection alive.
	lastSeen, busy := c.r.last.Load(), c.busy.Load() > 0
	silent := time.Duration(now - max(lastSeen, owed))
	quiet := time.Duration(now - c.w.last.Load())
	switch {
	case closed:
	case (busy || owed > lastSeen) && silent > cfg.DeadAfter:
		c.pool.metrics.dead.WithLabelValues(sideClient.String()).Inc()
		c.close(errSilent)
	case busy:
	case goAway:
		c.close(errShutdown)
	case time.Duration(now-c.lastUse.Load()) > cfg.IdleTimeout:
		c.close(errIdle)
	case quiet > cfg.PingInterval:
		head, err := encodeFrame(&header{class: c.class, kind: KindPing}, nil)
		if err == nil {
			c.w.sendSmall(head, later) //nolint:errcheck // a failed write closes the connection
		}
	}
}
