package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// PoolConfig describes the caller, and sets the limits of a pool. In the modes
// secure and crc, the certificate says who calls. Role, Node and the fields after
// them are then optional, and must agree with it if set.
type PoolConfig struct {
	Mode Mode
	// Cluster is compared with every server's; zero accepts any (mode insecure
	// only: a certificate names its cluster).
	Cluster  moraine.UUID
	Role     Role
	Node     string
	Scope    string // "/" if empty
	ReadOnly bool
	Squash   bool
	// Release is reported to servers, for people.
	Release string

	// BulkConnections is how many connections a server gets, spread over its
	// addresses (2).
	BulkConnections int
	// RequestTimeout is the deadline of calls whose context has none (60 s).
	RequestTimeout time.Duration
	// DialTimeout limits one attempt at one address, handshake included (5 s).
	DialTimeout time.Duration
	// MinBackoff and MaxBackoff limit the wait after a failed attempt (20 ms, 2 s).
	MinBackoff, MaxBackoff time.Duration
	// DeadAfter is how long a server that owes an answer may be silent (8 s). While
	// it works on one it sends a ping every 2 s.
	DeadAfter time.Duration
	// PingInterval is how long a connection may be idle before the caller sends a
	// ping (15 s).
	PingInterval time.Duration
	// IdleTimeout closes connections that were unused for so long (2 min).
	IdleTimeout time.Duration
}

// PoolDeps are the dependencies that a test replaces.
type PoolDeps struct {
	// Identity is required in the modes secure and crc.
	Identity *pki.Identity
	Clock    clock.Clock
	Log      *slog.Logger
	Metrics  *Metrics
}

func (c *PoolConfig) setDefaults(id *pki.Identity) {
	c.Mode = cmp.Or(c.Mode, Secure)
	if id != nil && c.Mode != Insecure {
		claims := id.Claims()
		if c.Cluster.IsZero() {
			c.Cluster = claims.Cluster
		}
		c.Role = cmp.Or(c.Role, claims.Role)
		c.Node = cmp.Or(c.Node, claims.Node)
	}
	c.Scope = cmp.Or(c.Scope, "/")
	setDefault(&c.BulkConnections, 2)
	setDefault(&c.RequestTimeout, time.Minute)
	setDefault(&c.DialTimeout, 5*time.Second)
	setDefault(&c.MinBackoff, 20*time.Millisecond)
	setDefault(&c.MaxBackoff, 2*time.Second)
	setDefault(&c.DeadAfter, 8*time.Second)
	setDefault(&c.PingInterval, 15*time.Second)
	setDefault(&c.IdleTimeout, 2*time.Minute)
}

func (c *PoolConfig) validate(id *pki.Identity) error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "transport.NewPool", Ref: c.Node, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	if err := c.Mode.Validate(); err != nil {
		return err
	}
	switch {
	case c.Mode != Insecure && id == nil:
		return bad("mode %s needs a certificate", c.Mode)
	case !c.Role.Valid():
		return bad("unknown role %q", c.Role)
	case !pki.ValidNode(c.Node):
		return bad("invalid node id %q: set Node", c.Node)
	case c.BulkConnections < 1 || c.BulkConnections > 64:
		return bad("%d bulk connections are out of range: use 1 to 64", c.BulkConnections)
	case c.MinBackoff <= 0 || c.MaxBackoff < c.MinBackoff:
		return bad("invalid backoff of %v to %v", c.MinBackoff, c.MaxBackoff)
	case min(c.RequestTimeout, c.DialTimeout, c.DeadAfter, c.PingInterval, c.IdleTimeout) < time.Millisecond:
		return bad("timeouts must be at least %v", time.Millisecond)
	}
	if c.Mode != Insecure {
		if claims := id.Claims(); claims.Node != c.Node || claims.Role != c.Role || claims.Cluster != c.Cluster {
			return bad("certificate is of %s %s in cluster %v, not of %s %s in %v",
				claims.Role, claims.Node, claims.Cluster, c.Role, c.Node, c.Cluster)
		}
	}
	return nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Pool holds the connections of one caller to any number of servers. It is a
// Dialer. It makes connections when they are first needed. The next call reconnects
// a lost one, with a backoff after failures; during the backoff calls fail at once.
// Safe for concurrent use.
//
// Its goroutines (a reader for each connection, connection attempts, one that
// supervises all) start with calls and have ended when Close returns. Locks:
// peer.mu before clientConn.mu; Pool.mu is taken alone.
type Pool struct {
	cfg     PoolConfig
	id      *pki.Identity
	clock   clock.Clock
	log     *slog.Logger
	metrics *Metrics
	slots   limit.Resource // of a connection
	start   time.Time
	routine goroutines
	ctx     context.Context // ends at Close; for connections, not for calls
	cancel  context.CancelFunc

	token   atomic.Pointer[[]byte]
	revoked atomic.Pointer[Revocations]

	mu      sync.Mutex // guards the fields below
	peers   map[string]*peer
	streams map[*raftConn]struct{} // of the log, dialled by this pool
	kept    bool                   // the keeper runs
	closed  bool
}

// NewPool returns a pool without connections.
func NewPool(cfg PoolConfig, deps PoolDeps) (*Pool, error) {
	cfg.setDefaults(deps.Identity)
	if err := cfg.validate(deps.Identity); err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, id: deps.Identity, clock: deps.Clock, log: deps.Log, metrics: deps.Metrics, peers: make(map[string]*peer), streams: make(map[*raftConn]struct{})}
	p.clock = cmp.Or[clock.Clock](p.clock, clock.System{})
	p.log = cmp.Or(p.log, slog.New(slog.DiscardHandler))
	if p.metrics == nil {
		p.metrics = NewMetrics(nil)
	}
	p.start = p.clock.Now()
	p.metrics.expires(p.currentLeaf())
	p.slots = limit.Resource{Name: "slots of a connection to a server", Reports: limit.NewReporter(p.log, p.metrics.waitsExceeded),
		Advice: "the server does not answer its requests"}
	// The pool owns its connections; no caller's context may end them.
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// now is the clock of connections: nanoseconds since the pool was made.
func (p *Pool) now() int64 { return int64(p.clock.Since(p.start)) }

// Metadata implements Dialer.
func (p *Pool) Metadata(addrs []string) Metadata {
	return NewMetadataClient(p.peer(RoleMetadata, "", addrs))
}

// Chunks implements Dialer.
func (p *Pool) Chunks(node string, addrs []string) Chunks {
	return NewChunksClient(p.peer(RoleChunkserver, node, addrs))
}

// peer returns the server of that role (and node, if not empty) at addrs.
func (p *Pool) peer(role Role, node string, addrs []string) *peer {
	addrs = slices.Sorted(slices.Values(addrs))
	key := string(role) + "\x00" + node + "\x00" + strings.Join(addrs, "\x00")
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.peers[key]
	if pr == nil {
		pr = newPeer(p, key, role, node, addrs)
		if !p.closed {
			p.peers[key] = pr
		}
	}
	return pr
}

// adopt puts a forgotten peer back before it gets a connection.
func (p *Pool) adopt(pr *peer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &moraine.Error{Op: "transport.Pool", Kind: moraine.Unavailable, Err: errShutdown}
	}
	if p.peers[pr.key] == nil {
		p.peers[pr.key] = pr
	}
	if !p.kept {
		p.kept = true
		p.routine.run(p.keep)
	}
	return nil
}

// SetToken implements Dialer.
func (p *Pool) SetToken(token []byte) {
	token = append([]byte(nil), token...)
	p.token.Store(&token)
	for _, pr := range p.known() {
		pr.forgive()
		for _, c := range pr.open(Bulk) {
			p.refresh(c)
		}
	}
}

// known returns the current peers.
func (p *Pool) known() []*peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	peers := make([]*peer, 0, len(p.peers))
	for _, pr := range p.peers {
		peers = append(peers, pr)
	}
	return peers
}

func (p *Pool) currentToken() []byte {
	if token := p.token.Load(); token != nil {
		return *token
	}
	return nil
}

// refresh presents the current token on a connection that was opened with an
// earlier one, without waiting for the answer. Only one goroutine at a time
// does that for a connection. Two could overtake each other, and leave the
// server with the older token, which expires first.
func (p *Pool) refresh(c *clientConn) {
	if needsToken(p.cfg.Role, c.class) && !p.isShown(c) && c.showing.CompareAndSwap(false, true) {
		p.routine.run(func() { p.show(c) })
	}
}

// isShown reports whether the server has seen the current token on c.
func (p *Pool) isShown(c *clientConn) bool {
	shown := c.shown.Load()
	return shown != nil && string(*shown) == string(p.currentToken())
}

// show presents tokens on c until it has presented the current one or c ends. It
// retries a server that does not know the token's key yet.
func (p *Pool) show(c *clientConn) {
	for wait := p.cfg.MinBackoff; ; {
		for !p.isShown(c) {
			token := p.currentToken()
			err := p.showOnce(c, token)
			switch {
			case err == nil:
				c.shown.Store(&token)
				wait = p.cfg.MinBackoff
				continue
			case !errors.Is(err, moraine.Unavailable):
				p.log.Warn("session token refused", "addr", c.addr, "err", err)
				c.close(err)
			}
			if !c.usable() || !p.pause(wait) {
				return
			}
			wait = min(2*wait, p.cfg.MaxBackoff)
		}
		c.showing.Store(false)
		// A token may have arrived after the last check, while this goroutine still counted
		// as showing it. So check once more.
		if p.isShown(c) || !c.showing.CompareAndSwap(false, true) {
			return
		}
	}
}

func (p *Pool) showOnce(c *clientConn, token []byte) error {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.RequestTimeout)
	defer cancel()
	sealed, err := sealToken(c.dataKey, token)
	if err == nil {
		_, err = c.do(ctx, &Call{Kind: KindRefreshToken, Class: c.class, Message: &wire.RefreshToken{Token: sealed}})
	}
	return err
}

// pause waits for d, and returns false if the pool was closed meanwhile.
func (p *Pool) pause(d time.Duration) bool {
	select {
	case <-p.clock.After(d):
		return true
	case <-p.ctx.Done():
		return false
	}
}

// keep supervises all connections until the pool is closed.
func (p *Pool) keep() {
	tick := p.clock.NewTicker(min(time.Second, p.cfg.DeadAfter/4, p.cfg.IdleTimeout/4))
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		now, current := p.now(), p.currentLeaf()
		p.metrics.expires(current)
		for _, pr := range p.known() {
			if pr.check(now, current) {
				p.forget(pr)
			}
		}
	}
}

// forgetAfter is how long an unused server is remembered.
const forgetAfter = time.Hour

func (p *Pool) forget(pr *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers[pr.key] == pr {
		delete(p.peers, pr.key)
	}
}

// Close ends all connections; running calls fail with Unavailable. It returns nil
// when all goroutines of the pool have ended.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	peers := p.peers
	p.peers = nil
	p.mu.Unlock()
	p.cancel()
	for _, pr := range peers {
		pr.close()
	}
	p.routine.wait()
	return nil
}
