package memnet

import (
	"context"
	"net"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
)

// Node is one server on the network, until Close.
type Node struct {
	net    *Net
	id     string
	opts   Options
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	raft   chan net.Conn
}

func newNode(n *Net, id string, opts Options) *Node {
	node := &Node{net: n, id: id, opts: opts, raft: make(chan net.Conn)}
	// The node owns the work of its handlers.
	node.ctx, node.cancel = context.WithCancel(context.Background())
	return node
}

// Address returns the address of the node.
func (d *Node) Address() string { return Address(d.id) }

// Close removes the node from the network, like a crash. Calls to it and its raft
// connections fail, and the contexts of its handlers end. The id may listen again
// afterwards. Close returns nil.
func (d *Node) Close() error {
	d.net.mu.Lock()
	if d.net.nodes[d.id] == d {
		delete(d.net.nodes, d.id)
		d.net.changeLocked()
	}
	d.net.mu.Unlock()
	d.cancel()
	return nil
}

// RaftListener returns the listener of the node's raft connections. Closing it
// closes these connections, but not the node.
func (d *Node) RaftListener() net.Listener {
	l := &listener{node: d}
	l.ctx, l.cancel = context.WithCancel(d.ctx)
	return l
}

// DialRaft opens a raft connection from this node to the one at addr.
func (d *Node) DialRaft(addr string, timeout time.Duration) (net.Conn, error) {
	fail := func(kind moraine.Kind, cause error) (net.Conn, error) {
		return nil, &moraine.Error{Op: "memnet.DialRaft", Ref: addr, Kind: kind, Err: cause}
	}
	to := NodeAt(addr)
	after := d.net.detectAfter()
	if timeout > 0 {
		after = min(after, timeout)
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	there, _ := d.net.state(d.id, to)
	back, _ := d.net.state(to, d.id)
	if there || back {
		select {
		case <-timer.C:
			return fail(moraine.Unavailable, errPartition)
		case <-d.ctx.Done():
			return fail(moraine.Unavailable, errClosed)
		}
	}
	peer := d.net.node(addr)
	if peer == nil {
		return fail(moraine.Unavailable, errRefused)
	}
	near, far := newPipe(d, peer)
	select {
	case peer.raft <- far:
		return near, nil
	case <-timer.C:
		return fail(moraine.Unavailable, errRefused)
	case <-peer.ctx.Done():
		return fail(moraine.Unavailable, errRefused)
	case <-d.ctx.Done():
		return fail(moraine.Unavailable, errClosed)
	}
}

type listener struct {
	node   *Node
	ctx    context.Context
	cancel context.CancelFunc
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.node.raft:
		context.AfterFunc(l.ctx, func() { c.Close() }) //nolint:errcheck // returns nil
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.cancel()
	return nil
}

func (l *listener) Addr() net.Addr { return addr(l.node.Address()) }

type addr string

func (addr) Network() string  { return "mem" }
func (a addr) String() string { return string(a) }

// serve runs the node's handler for req in a context that ends with the node, with
// caller's, and at its deadline.
func (d *Node) serve(caller context.Context, req *transport.Request) (*transport.Response, error) {
	ctx, cancel := context.WithCancel(transport.WithTrace(transport.WithPeer(d.ctx, req.Peer), req.Trace))
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	if t, ok := caller.Deadline(); ok {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, t)
		defer end()
	}
	return d.opts.Handler.Serve(ctx, req)
}
