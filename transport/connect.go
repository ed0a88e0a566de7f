package transport

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// sharedKey is the key that both ends of a control connection derived in mode crc.
type sharedKey struct {
	id  []byte
	key []byte
	// server is the server by the certificate of the control connection.
	server Peer
	own    *x509.Certificate // certificate that opened the control connection
}

// greeted is the result of a handshake.
type greeted struct {
	own     *x509.Certificate // certificate presented, nil in mode insecure
	stream  stream
	r       *reader
	remote  Peer
	reply   *wire.HelloReply
	token   []byte     // token presented
	key     *sharedKey // on a TLS connection to a server in mode crc
	dataKey []byte     // on an unencrypted connection in mode crc
}

// connect opens one connection.
func (pr *peer) connect(ctx context.Context, class Class, addr string) (*clientConn, error) {
	g, err := pr.greet(ctx, class, addr)
	if err != nil {
		return nil, err
	}
	p := pr.pool
	c := &clientConn{
		pool: p, peer: pr, class: class, addr: addr, stream: g.stream, r: g.r, remote: g.remote, dataKey: g.dataKey, own: g.own,
		incarnation: g.reply.Incarnation, calls: make(map[uint64]*call),
		slots: make(chan struct{}, max(1, min(g.reply.MaxInFlight, maxInFlight))),
	}
	c.w = newWriter(g.stream, p.now, p.routine.run, c.close)
	c.lastUse.Store(p.now())
	if needsToken(p.cfg.Role, class) {
		c.shown.Store(&g.token)
	}
	if g.key != nil {
		pr.mu.Lock()
		pr.shared = g.key
		pr.mu.Unlock()
	}
	return c, nil
}

// greet connects to addr and shakes hands. In mode crc it first obtains a key.
func (pr *peer) greet(ctx context.Context, class Class, addr string) (*greeted, error) {
	p := pr.pool
	if p.id != nil && p.cfg.Mode != Insecure {
		if err := p.id.Check(p.clock.Now()); err != nil {
			return nil, err
		}
	}
	if p.cfg.Mode.encrypts(class) || p.cfg.Mode == Insecure {
		return pr.greetWith(ctx, class, addr, nil)
	}
	for try := 0; ; try++ {
		key, err := pr.sharedKey(ctx)
		if err != nil {
			return nil, err
		}
		g, err := pr.greetWith(ctx, class, addr, key)
		if err == nil || !errors.Is(err, moraine.Stale) || try > 0 {
			return g, err
		}
		pr.dropKey(key) // the server was restarted
	}
}

// sharedKey returns the key for unencrypted connections. If there is none yet, it
// opens a control connection for one.
func (pr *peer) sharedKey(ctx context.Context) (*sharedKey, error) {
	for {
		pr.mu.Lock()
		key := pr.shared
		pr.mu.Unlock()
		if key != nil {
			if pr.pool.refuses(&key.server) == nil {
				return key, nil
			}
			pr.dropKey(key) // the server may have another certificate by now
		}
		c, err := pr.acquire(ctx, Control)
		if err != nil {
			return nil, err
		}
		c.busy.Add(-1)
		pr.mu.Lock()
		key = pr.shared
		pr.mu.Unlock()
		if key == nil {
			return nil, &moraine.Error{Op: "transport.dial", Ref: pr.name(), Kind: moraine.Unauthenticated,
				Err: errors.New("server gave no key for unencrypted connections: it does not run in mode crc")}
		}
	}
}

// dropKey drops key and the control connection that it came from.
func (pr *peer) dropKey(key *sharedKey) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if pr.shared != key {
		return
	}
	pr.shared = nil
	for _, c := range pr.conns[Control] {
		c.mu.Lock()
		c.goAway = true
		c.mu.Unlock()
	}
}

func (pr *peer) greetWith(ctx context.Context, class Class, addr string, key *sharedKey) (*greeted, error) {
	network, address := splitAddress(addr)
	if pr.role == RoleChunkserver && network == "tcp" {
		if g := pr.greetBeside(ctx, class, addr, key); g != nil {
			return g, nil
		}
	}
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, lost(addr, err)
	}
	tune(nc)
	return pr.greetOn(ctx, nc, class, addr, key)
}

// greetBeside shakes hands over the unix socket beside addr, and returns nil if
// that fails for any reason. Any program of this host can take the name of a
// socket, or refuse in the name of a server. Only TCP reaches the owner of the
// address. greetBeside leaves time for TCP, also if it must first obtain the key
// for an unencrypted connection, and does not retry for a while.
func (pr *peer) greetBeside(ctx context.Context, class Class, addr string, key *sharedKey) *greeted {
	p := pr.pool
	if p.now() < pr.besideAt.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout/5)
	defer cancel()
	nc := dialShortCircuit(ctx, addr, p.cfg.Mode)
	if nc == nil {
		return nil
	}
	g, err := pr.greetOn(ctx, nc, class, addr, key)
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the only failure that takes time
			pr.besideAt.Store(p.now() + int64(besideAgain))
		}
		p.log.Debug("unix socket connection failed", "server", pr.name(), "err", err)
		return nil
	}
	return g
}

// greetOn shakes hands on nc, which was dialled for addr, and closes it on failure.
func (pr *peer) greetOn(ctx context.Context, nc net.Conn, class Class, addr string, key *sharedKey) (*greeted, error) {
	// Closing the connection ends a handshake that exceeds its time.
	stop := context.AfterFunc(ctx, func() { nc.Close() }) //nolint:errcheck // a failed close loses nothing
	g, err := pr.shake(ctx, nc, class, addr, key)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = pr.checkServer(g)
	}
	if err == nil {
		return g, nil
	}
	nc.Close() //nolint:errcheck // a failed close loses nothing
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		return nil, refused.error
	case ctx.Err() != nil:
		return nil, lost(addr, fmt.Errorf("handshake not finished within %v", pr.pool.cfg.DialTimeout))
	}
	return nil, lost(addr, err)
}

// shake does TLS, if any, and the hello.
func (pr *peer) shake(ctx context.Context, nc net.Conn, class Class, addr string, key *sharedKey) (*greeted, error) {
	p := pr.pool
	g := &greeted{remote: Peer{Addr: addr}}
	var state *tls.ConnectionState
	if p.cfg.Mode.encrypts(class) {
		under := newSink(nc, p.now)
		own, _, _ := p.id.Current()
		g.own = own.Leaf
		tc := tls.Client(under, clientTLS(p.id, own, p.clock.Now))
		if err := tc.HandshakeContext(ctx); err != nil {
			return nil, tlsError(err, addr)
		}
		cs := tc.ConnectionState()
		state = &cs
		remote, err := verifyPeer(cs, p.id, p.clock.Now(), x509.ExtKeyUsageServerAuth, addr)
		if err != nil {
			return nil, err
		}
		g.remote = *remote
		st := &tlsStream{Conn: tc, sink: under}
		st.fit(class)
		g.stream = st
	} else {
		g.stream = newPlainStream(nc)
	}
	g.r = newReader(g.stream, readBuffer(class), p.now)
	if err := pr.hello(g, class, key); err != nil {
		return nil, err
	}
	if state != nil && len(g.reply.KeyId) > 0 {
		exported, err := state.ExportKeyingMaterial(keyLabel, nil, 32)
		if err != nil {
			return nil, err
		}
		g.key = &sharedKey{id: g.reply.KeyId, key: exported, server: g.remote, own: g.own}
	}
	return g, nil
}

// hello sends the caller's identity and reads the server's.
func (pr *peer) hello(g *greeted, class Class, key *sharedKey) error {
	p := pr.pool
	h := &wire.Hello{
		MinVersion: frameVersion, MaxVersion: frameVersion, Cluster: uuidBytes(p.cfg.Cluster),
		Node: p.cfg.Node, Class: uint32(class), Release: p.cfg.Release, Role: string(p.cfg.Role),
		Scope: p.cfg.Scope, ReadOnly: p.cfg.ReadOnly, Squash: p.cfg.Squash,
	}
	if needsToken(p.cfg.Role, class) {
		g.token = p.currentToken()
	}
	if key != nil {
		h.KeyId, g.dataKey = key.id, key.key
		h.Nonce = make([]byte, nonceLen)
		rand.Read(h.Nonce) //nolint:errcheck // never fails
	}
	var err error
	if h.Token, err = sealToken(g.dataKey, g.token); err != nil {
		return err
	}
	sent, err := writeHello(g.stream, 0, 1, h)
	if err != nil {
		return err
	}
	g.reply = new(wire.HelloReply)
	if _, err := readHello(g.r, flagReply, g.reply); err != nil {
		return err
	}
	if key != nil {
		if err := pr.prove(g, key, sent); err != nil {
			return err
		}
		g.remote, g.own = key.server, key.own
		g.remote.Addr = pr.name()
	}
	cluster, err := uuidOf(g.reply.Cluster)
	if err != nil {
		return err
	}
	if p.cfg.Mode == Insecure {
		g.remote.Cluster, g.remote.Role, g.remote.Node, g.remote.Scope = cluster, Role(g.reply.Role), g.reply.Node, "/"
	}
	if !p.cfg.Cluster.IsZero() && !cluster.IsZero() && cluster != p.cfg.Cluster {
		return &moraine.Error{Op: "transport.hello", Ref: g.remote.Addr, Kind: moraine.WrongCluster,
			Err: fmt.Errorf("server is of cluster %v, not of %v", cluster, p.cfg.Cluster)}
	}
	return nil
}

// prove verifies the server's proof and sends ours.
func (pr *peer) prove(g *greeted, key *sharedKey, sent []byte) error {
	if len(g.reply.Nonce) != nonceLen || !hmac.Equal(g.reply.Proof, proof(key.key, proofOfServer, sent, g.reply.Nonce)) {
		return &moraine.Error{Op: "transport.hello", Ref: pr.name(), Kind: moraine.Unauthenticated,
			Err: errors.New("server does not know the key of its control connection")}
	}
	if _, err := writeHello(g.stream, 0, 2, &wire.HelloProof{Proof: proof(key.key, proofOfClient, sent, g.reply.Nonce)}); err != nil {
		return err
	}
	g.reply = new(wire.HelloReply)
	_, err := readHello(g.r, flagReply, g.reply)
	return err
}

// checkServer refuses a server that is not the requested one.
func (pr *peer) checkServer(g *greeted) error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "transport.hello", Ref: g.remote.Addr, Kind: moraine.PermissionDenied, Err: fmt.Errorf(format, args...)}
	}
	if err := pr.pool.refuses(&g.remote); err != nil {
		return err
	}
	switch {
	case g.remote.Role != pr.role:
		return bad("server at the address is a %s, not a %s", g.remote.Role, pr.role)
	case pr.node != "" && g.remote.Node != pr.node:
		return bad("server at the address is %s, not %s", g.remote.Node, pr.node)
	case g.reply.Node != g.remote.Node:
		return bad("server at the address claims to be %s, but its certificate names %s", g.reply.Node, g.remote.Node)
	}
	return nil
}

// tlsError adds the most likely cause of a failed TLS handshake.
func tlsError(err error, addr string) error {
	var e *moraine.Error
	if errors.As(err, &e) {
		return e
	}
	var header tls.RecordHeaderError
	if errors.As(err, &header) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = fmt.Errorf("%w (does the server run in mode insecure?)", err)
	}
	return &moraine.Error{Op: "transport.tls", Ref: addr, Kind: moraine.Unavailable, Err: err}
}

// DialRaft opens a connection of class Raft to the metadata server at addr: a
// stream of raw bytes, which the caller closes. It does not count towards the
// pool's limits.
func (p *Pool) DialRaft(addr string, timeout time.Duration) (net.Conn, error) {
	if p.cfg.Role != RoleMetadata {
		return nil, &moraine.Error{Op: "transport.DialRaft", Ref: addr, Kind: moraine.PermissionDenied,
			Err: fmt.Errorf("a %s cannot take part in the log: only metadata servers can", p.cfg.Role)}
	}
	if timeout <= 0 {
		timeout = p.cfg.DialTimeout
	}
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	pr := p.peer(RoleMetadata, "", []string{addr})
	g, err := pr.greet(ctx, Raft, addr)
	if err != nil {
		return nil, err
	}
	c := &raftConn{heldConn: heldConn{g.stream, g.r}, remote: g.remote}
	if end := endsAt(g.own, &g.remote); !end.IsZero() {
		c.expiry = time.AfterFunc(end.Sub(p.clock.Now()), func() { g.stream.Close() }) //nolint:errcheck // it may have ended
	}
	if err := p.holdStream(c); err != nil {
		c.Close() //nolint:errcheck // a failed close loses nothing
		return nil, err
	}
	return c, nil
}
