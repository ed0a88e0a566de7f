package memnet

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

var (
	errLost      = errors.New("message was lost")
	errPartition = errors.New("network is partitioned")
	errRefused   = errors.New("no server listens at the address")
	errClosed    = errors.New("node was closed")
)

const (
	pieceSize      = 256 << 10
	requestTimeout = time.Minute
)

// Dialer returns the network as peer sees it. Its calls come from the node
// peer.Node.
func (n *Net) Dialer(peer transport.Peer) transport.Dialer {
	if peer.Scope == "" {
		peer.Scope = "/"
	}
	return &dialer{net: n, peer: peer}
}

type dialer struct {
	net  *Net
	peer transport.Peer

	mu       sync.Mutex // guards the fields below
	token    []byte
	admitted map[*Node]admission // by each server
	closed   bool
}

// admission is what a server found when it verified a token.
type admission struct {
	token  []byte
	key    ed25519.PublicKey
	claims *wire.TokenClaims
}

// Metadata implements transport.Dialer.
func (d *dialer) Metadata(addrs []string) transport.Metadata {
	return transport.NewMetadataClient(&caller{dialer: d, role: transport.RoleMetadata, addrs: slices.Clone(addrs)})
}

// Chunks implements transport.Dialer.
func (d *dialer) Chunks(node string, addrs []string) transport.Chunks {
	return transport.NewChunksClient(&caller{dialer: d, role: transport.RoleChunkserver, node: node, addrs: slices.Clone(addrs)})
}

// SetToken implements transport.Dialer.
func (d *dialer) SetToken(token []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.token = slices.Clone(token)
}

// SetRevoked implements transport.Dialer. Servers have no certificates here.
func (d *dialer) SetRevoked(*transport.Revocations) {}

// Close implements transport.Dialer.
func (d *dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// caller calls one server.
type caller struct {
	dialer *dialer
	role   transport.Role
	node   string
	addrs  []string
}

// Call implements transport.Caller.
func (c *caller) Call(ctx context.Context, call *transport.Call) (int, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	req, err := c.request(ctx, call)
	if err != nil {
		return 0, err
	}
	resp, err := c.exchange(ctx, req)
	if err != nil {
		return 0, err
	}
	return deliver(call, resp)
}

// request copies call into the request that the server will see.
func (c *caller) request(ctx context.Context, call *transport.Call) (*transport.Request, error) {
	size := 0
	for _, p := range call.Payload {
		size += len(p)
	}
	switch {
	case size > transport.MaxPayload:
		return nil, c.fail(moraine.TooLarge, fmt.Errorf("payload of %d bytes is too large", size))
	case proto.Size(call.Message) > transport.MaxMessage:
		return nil, c.fail(moraine.TooLarge, fmt.Errorf("message of %d bytes is too large", proto.Size(call.Message)))
	}
	req := &transport.Request{Kind: call.Kind, Class: call.Class, Message: proto.Clone(call.Message), Trace: traceOf(ctx)}
	if size > 0 {
		req.Payload = &payload{data: slices.Concat(call.Payload...)}
	}
	return req, nil
}

func traceOf(ctx context.Context) moraine.UUID {
	t := transport.TraceFrom(ctx)
	if t.IsZero() {
		binary.LittleEndian.PutUint64(t[:8], rand.Uint64())
		binary.LittleEndian.PutUint64(t[8:], rand.Uint64())
	}
	return t
}

// exchange carries req to its server and the response back.
func (c *caller) exchange(ctx context.Context, req *transport.Request) (*result, error) {
	from, n := c.dialer.peer.Node, c.dialer.net
	to, err := c.target()
	if err != nil {
		return nil, err
	}
	f := n.draw(from, to.id, func(f Faults) float64 { return f.LoseRequest })
	if err := c.travel(ctx, from, to.id, f); err != nil {
		return nil, err
	}
	if req.Peer, err = c.admit(to, req); err != nil {
		return nil, err
	}
	res, err := c.await(ctx, to, req)
	if err != nil {
		return nil, err
	}
	f = n.draw(to.id, from, func(f Faults) float64 { return f.LoseReply })
	if err := c.travel(ctx, to.id, from, f); err != nil {
		res.release()
		return nil, err
	}
	return res, nil
}

// target finds the server, as a connection's handshake would.
func (c *caller) target() (*Node, error) {
	c.dialer.mu.Lock()
	closed := c.dialer.closed
	c.dialer.mu.Unlock()
	if closed {
		return nil, c.fail(moraine.Unavailable, errClosed)
	}
	for _, a := range c.addrs {
		to := c.dialer.net.node(a)
		if to == nil || to.opts.Handler == nil {
			continue
		}
		switch {
		case to.opts.Role != c.role:
			return nil, c.fail(moraine.PermissionDenied, fmt.Errorf("server at the address is a %s, not a %s", to.opts.Role, c.role))
		case c.node != "" && to.id != c.node:
			return nil, c.fail(moraine.PermissionDenied, fmt.Errorf("server at the address is %s, not %s", to.id, c.node))
		}
		return to, nil
	}
	return nil, c.fail(moraine.Unavailable, errRefused)
}

// admit makes the checks of a server's hello, and returns the peer for its handler.
func (c *caller) admit(to *Node, req *transport.Request) (*transport.Peer, error) {
	peer := c.dialer.peer
	peer.Addr = Address(peer.Node)
	if o := to.opts.Cluster; !o.IsZero() && !peer.Cluster.IsZero() && o != peer.Cluster {
		return nil, c.fail(moraine.WrongCluster, fmt.Errorf("caller wants cluster %v, this is %v", peer.Cluster, o))
	}
	if req.Class != transport.Bulk || peer.Role.Server() || to.opts.Keys == nil {
		return &peer, nil
	}
	var err error
	peer.Token, err = c.dialer.verify(to, &peer)
	return &peer, err
}

// verify is transport.VerifyToken of the dialer's token. A server verifies the signature of a
// token once, as it does at the hello of a connection: a signature costs more than a call.
func (d *dialer) verify(to *Node, peer *transport.Peer) (*wire.TokenClaims, error) {
	d.mu.Lock()
	token, last := d.token, d.admitted[to]
	d.mu.Unlock()
	keys, now := to.opts.Keys, time.Now()
	if last.claims != nil && bytes.Equal(last.token, token) && last.key.Equal(keys(last.claims.Key)) && now.Unix() < last.claims.Expires {
		return last.claims, nil
	}
	claims, err := transport.VerifyToken(token, peer, keys, now)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.admitted == nil {
		d.admitted = map[*Node]admission{}
	}
	d.admitted[to] = admission{token: token, key: keys(claims.Key), claims: claims}
	return claims, nil
}

// travel waits for the time of one message, or loses the message.
func (c *caller) travel(ctx context.Context, from, to string, f fate) error {
	if f.delay > 0 {
		if err := c.sleep(ctx, f.delay); err != nil {
			return err
		}
	}
	cut, _ := c.dialer.net.state(from, to)
	if !cut && !f.lost {
		return nil
	}
	if err := c.sleep(ctx, c.dialer.net.detectAfter()); err != nil {
		return err
	}
	if cut {
		return c.fail(moraine.Unavailable, errPartition)
	}
	return c.fail(moraine.Unavailable, errLost)
}

func (c *caller) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return c.gaveUp(ctx)
	}
}

// result is a handler's answer.
type result struct {
	*transport.Response
	err error
}

func (r *result) release() {
	if r.Response != nil && r.Release != nil {
		r.Release()
	}
}

// await runs the handler and waits for it, for the end of ctx, for the server's
// end, or for a partition. A caller that stops waiting leaves the result to be
// released.
func (c *caller) await(ctx context.Context, to *Node, req *transport.Request) (*result, error) {
	n := c.dialer.net
	handling, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan *result)
	gone := make(chan struct{})
	defer close(gone)
	n.wg.Go(func() {
		resp, err := to.run(handling, req)
		res := &result{resp, err}
		select {
		case done <- res:
		case <-gone:
			res.release()
		}
	})
	for {
		there, changed := n.state(c.dialer.peer.Node, to.id)
		back, _ := n.state(to.id, c.dialer.peer.Node)
		var silent <-chan time.Time
		var timer *time.Timer
		if there || back {
			timer = time.NewTimer(n.detectAfter())
			silent = timer.C
		}
		var err error
		select {
		case res := <-done:
			if to.ctx.Err() == nil {
				return res, nil
			}
			res.release() // answers of a dying node are lost
			err = c.fail(moraine.Unavailable, errClosed)
		case <-ctx.Done():
			err = c.gaveUp(ctx)
		case <-to.ctx.Done():
			err = c.fail(moraine.Unavailable, errClosed)
		case <-silent:
			err = c.fail(moraine.Unavailable, errPartition)
		case <-changed:
		}
		if timer != nil {
			timer.Stop()
		}
		if err != nil {
			return nil, err
		}
	}
}

// run is serve that turns a panic into the error that a real server's caller would
// get.
func (d *Node) run(ctx context.Context, req *transport.Request) (resp *transport.Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, &moraine.Error{Op: req.Kind.String(), Ref: d.id, Kind: moraine.Internal, Err: fmt.Errorf("server failed: %v", v)}
		}
	}()
	resp, err = d.serve(ctx, req)
	if err == nil && (resp == nil || resp.Message == nil || !resp.Message.ProtoReflect().IsValid()) {
		return nil, &moraine.Error{Op: req.Kind.String(), Ref: d.id, Kind: moraine.Internal, Err: errors.New("handler gave no answer")}
	}
	return resp, err
}

// deliver copies a result to its caller, on the caller's goroutine.
func deliver(call *transport.Call, res *result) (int, error) {
	defer res.release()
	if res.err != nil {
		return 0, transport.ErrorFromWire(transport.ErrorToWire(res.err))
	}
	if call.Reply != nil {
		proto.Merge(call.Reply, res.Message)
	}
	data := slices.Concat(res.Payload...)
	if len(data) > len(call.Dst) {
		return 0, &moraine.Error{Op: call.Kind.String(), Kind: moraine.Internal,
			Err: fmt.Errorf("reply of %d bytes exceeds the requested %d", len(data), len(call.Dst))}
	}
	copyPieces(call.Dst, data, call.Each)
	return len(data), nil
}

// copyPieces copies data into dst in pieces, and passes each to the callback.
func copyPieces(dst, data []byte, each func([]byte)) {
	for len(data) > 0 {
		n := copy(dst[:min(pieceSize, len(data))], data)
		if each != nil {
			each(dst[:n])
		}
		dst, data = dst[n:], data[n:]
	}
}

func (c *caller) fail(kind moraine.Kind, err error) error {
	ref := c.node
	if ref == "" && len(c.addrs) > 0 {
		ref = c.addrs[0]
	}
	return &moraine.Error{Op: "memnet", Ref: ref, Kind: kind, Err: err}
}

func (c *caller) gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return c.fail(moraine.Timeout, nil)
	}
	return c.fail(moraine.Canceled, nil)
}

// payload is a request's payload, already in memory.
type payload struct {
	data []byte
	used bool
}

// Len implements transport.Payload.
func (p *payload) Len() int { return len(p.data) }

// ReadInto implements transport.Payload.
func (p *payload) ReadInto(dst []byte, each func([]byte)) error {
	p.use()
	if len(dst) < len(p.data) {
		panic(fmt.Sprintf("memnet: a payload of %d bytes into %d", len(p.data), len(dst)))
	}
	copyPieces(dst, p.data, each)
	return nil
}

// Discard implements transport.Payload.
func (p *payload) Discard() error {
	p.use()
	return nil
}

func (p *payload) use() {
	if p.used {
		panic("memnet: payload read twice")
	}
	p.used = true
}
