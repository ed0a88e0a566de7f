package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

const (
	// maxConns bounds the connections: each rank needs two, and one for each step that it has
	// open. A user alone gets half of them.
	maxConns = 2048
	// maxStrangers bounds the connections of users who may not use the agent. Each gets an error.
	maxStrangers = 16
	// strangerPatience is how long such a connection lasts at most.
	strangerPatience = 5 * time.Second
	// maxHello bounds the first frame of a connection, in bytes.
	maxHello = 4 << 10
)

// conn is one connection of a trainer. One goroutine uses it.
type conn struct {
	a       *Agent
	c       *agentproto.Conn
	uid     uint32
	gid     uint32
	greeted bool // the trainer has sent Hello
	run     *run // nil before Open
	// filling is the part between Begin and Seal, sealTimeoutMillis its Begin's.
	filling           *part
	sealTimeoutMillis int64
	restore           restorer
	reads             []*slot // that the trainer may have mapped
	files             files
	frame             int64 // bytes of the request in agent.frames
}

// accept serves connections until the listener is closed.
func (a *Agent) accept() {
	for {
		c, err := a.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // of descriptors, for example
			a.log.Warn("connection not accepted", "err", err)
			a.pause(100 * time.Millisecond)
			continue
		}
		uid, err := peerUser(c)
		if err != nil || !a.admitConn(c, uid) {
			_ = c.Close() // no request was received
			continue
		}
		a.running.Go(func() { a.serve(c, uid) })
	}
}

// serve answers one trainer until its connection ends. A part that it has not sealed ends then,
// too.
func (a *Agent) serve(uc *net.UnixConn, uid uint32) {
	c := &conn{a: a, c: agentproto.NewConn(uc), uid: uid, gid: peerGroup(uc)}
	defer func() {
		a.mu.Lock()
		delete(a.conns, uc)
		if !a.mayUse(uid) {
			a.strangers--
		}
		a.mu.Unlock()
		_ = uc.Close() // it has ended
		c.end()
	}()
	for {
		var req agentproto.Request
		err := c.receive(&req)
		var reply *agentproto.Reply
		var file *os.File
		switch {
		case err == nil:
			ctx, stop := c.untilHangup(a.work)
			reply, file = c.answer(ctx, &req)
			stop()
		case c.greeted && errors.Is(err, moraine.InvalidArgument): // a whole frame that is no request
			reply = &agentproto.Reply{Error: agentproto.ErrorOf(err)}
		default:
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				c.broken(err)
			}
			return
		}
		if reply.Error != nil && a.work.Err() != nil {
			return // the agent ends: without an answer, the trainer repeats the request to the next one
		}
		err = c.send(reply, file)
		if errors.Is(err, moraine.TooLarge) {
			err = c.send(&agentproto.Reply{Error: agentproto.ErrorOf(err)}, nil)
		}
		if err != nil {
			c.broken(err)
			return
		}
	}
}

// untilHangup returns a context that ends when the trainer dies while it waits for a reply. stop
// ends the watch, and must be called before the connection is read again.
func (c *conn) untilHangup(ctx context.Context) (_ context.Context, stop func()) {
	if !c.greeted {
		return ctx, func() {} // hello does not wait, and has a deadline of its own
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if c.c.AwaitHangup() {
			cancel()
		}
	}()
	return ctx, func() {
		c.c.StopAwait(ended)
		cancel()
	}
}

// send sends a reply. A file that is not a slot's own is closed after it.
func (c *conn) send(reply *agentproto.Reply, file *os.File) error {
	c.endFrame()
	if file == nil {
		return c.c.Send(reply)
	}
	if reply.Read != nil || reply.FetchFile != nil {
		defer file.Close()
	}
	return c.c.Send(reply, file)
}

// end ends what lives only as long as the connection.
func (c *conn) end() {
	c.endFrame()
	if c.filling != nil {
		c.a.abandon(c.filling, errors.New("the trainer ended before it sealed its part"))
	}
	c.restore.close(c.a)
	c.a.unread(c.reads)
	c.files.close(c.a.pool)
	if c.run != nil {
		c.a.release(c.run)
	}
}

// answer serves one request. file is the descriptor that goes with the reply.
func (c *conn) answer(ctx context.Context, req *agentproto.Request) (reply *agentproto.Reply, file *os.File) {
	reply = &agentproto.Reply{}
	err := cleanRun(req)
	switch {
	case err != nil:
	case req.Hello != nil:
		reply.Hello, err = c.hello(req.Hello)
	case !c.greeted:
		err = c.invalid("the first request of a connection is hello")
	case req.Check() != nil:
		err = req.Check()
	case req.Open != nil:
		reply.Open, err = c.open(ctx, req.Open)
	case req.Begin != nil:
		reply.Begin, file, err = c.begin(ctx, req.Begin)
	case req.Seal != nil:
		reply.Seal, err = c.seal(ctx, req.Seal)
	case req.Abort != nil:
		reply.Abort, err = c.abort(req.Abort)
	case req.Wait != nil:
		wctx, cancel := bounded(ctx, req.Wait.TimeoutMillis)
		defer cancel()
		reply.Wait, err = c.a.wait(wctx, c.uid, req.Wait)
	case req.Read != nil:
		reply.Read, file, err = c.read(req.Read)
	case req.Push != nil:
		reply.Push, err = c.push(ctx, req.Push)
	case req.Resolve != nil:
		reply.Resolve, err = c.resolve(ctx, req.Resolve)
	case req.Tensors != nil:
		reply.Tensors, err = c.tensors(ctx, req.Tensors)
	case req.Fetch != nil:
		reply.Fetch, file, err = c.fetch(ctx, req.Fetch)
	case req.Progress != nil:
		reply.Progress, err = c.a.progress(ctx, c.uid, req.Progress)
	case req.Status != nil:
		reply.Status = c.status()
	case aboutFiles(req):
		file, err = c.serveFile(ctx, req, reply)
	default:
		err = &moraine.Error{Op: "agent", Kind: moraine.Unimplemented, Err: errors.New("this agent does not know the request: it may be older than the trainer's package")}
	}
	if err != nil {
		return &agentproto.Reply{Error: agentproto.ErrorOf(err)}, nil
	}
	return reply, file
}

func (c *conn) invalid(format string, args ...any) error {
	return &moraine.Error{Op: "agent", Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

func bounded(ctx context.Context, millis int64) (context.Context, context.CancelFunc) {
	if millis <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, milliseconds(millis))
}

// milliseconds is n milliseconds, or the longest duration if they are more.
func milliseconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func (c *conn) hello(req *agentproto.Hello) (*agentproto.HelloReply, error) {
	if req.Version != agentproto.Version {
		return nil, &moraine.Error{Op: "agent", Kind: moraine.NewerFormat, Err: fmt.Errorf(
			"the trainer speaks version %d of the protocol, this agent %d: upgrade the older of the two", req.Version, agentproto.Version)}
	}
	if !c.a.mayUse(c.uid) {
		return nil, &moraine.Error{Op: "agent", Kind: moraine.PermissionDenied, Err: fmt.Errorf(
			"user %d may not use this agent: start it as this user, or with --allow-user %d", c.uid, c.uid)}
	}
	c.greeted = true
	return &agentproto.HelloReply{Version: agentproto.Version, Memory: c.a.cfg.Memory, Used: c.a.pool.inUse()}, nil
}

// mayUse reports whether a user may use the agent. All users act with the agent's certificate.
func (a *Agent) mayUse(uid uint32) bool {
	return uid == 0 || uid == uint32(os.Geteuid()) || slices.Contains(a.cfg.Users, uid)
}
