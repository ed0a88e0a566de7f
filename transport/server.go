package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport/pki"
	"golang.org/x/time/rate"
)

// maxInFlight limits which of the other's limits either end accepts.
const maxInFlight = 64 << 10

// ServerConfig says who serves, where, and with which limits.
type ServerConfig struct {
	// Addresses to listen at: host:port (port 0: any) or unix:PATH.
	Addresses []string
	Mode      Mode
	// Cluster may be zero in mode insecure, until SetCluster.
	Cluster moraine.UUID
	Role    Role
	Node    string
	Release string

	// ShortCircuit also listens at a unix socket beside each TCP address, which
	// callers on the same host find by themselves.
	ShortCircuit bool

	// MaxConnections limits connections of all classes (16,384). The holders of one certificate
	// have at most half of them.
	MaxConnections int
	// MaxControl and MaxBulk limit the running requests of one connection (1,024
	// and 256).
	MaxControl, MaxBulk int
	// HandshakeTimeout limits TLS and hello (5 s).
	HandshakeTimeout time.Duration
	// PingInterval is how often the server sends a ping to a waiting caller (2 s).
	PingInterval time.Duration
	// IdleTimeout closes connections from which no data arrived (90 s).
	IdleTimeout time.Duration
	// StallTimeout closes connections whose peer started to send or receive and
	// then stopped (30 s).
	StallTimeout time.Duration
	// DrainTimeout is how long running requests may take to end when the server
	// stops (5 s).
	DrainTimeout time.Duration
}

// ServerDeps are the dependencies that a test replaces.
type ServerDeps struct {
	Handler Handler
	// Identity is required in the modes secure and crc.
	Identity *pki.Identity
	// Keys finds the keys of session tokens. Without it no token is valid, and only
	// servers may use bulk connections.
	Keys Keys
	// Incarnation returns the number of the metadata's incarnation, which grows
	// when metadata is restored from a backup; 0 while it is unknown. The server
	// calls it for each hello and each request. A connection made under another
	// number gets Unavailable, and ends: its caller may hold answers of the older
	// one. Nil: never known.
	Incarnation func() moraine.Incarnation
	// Revoked reports whether a peer's certificate was revoked. The server calls it
	// for each hello, and each second for each connection; nil: none is revoked. It
	// must be quick and safe for concurrent use.
	Revoked func(*Peer) bool
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *Metrics
}

func (c *ServerConfig) setDefaults(id *pki.Identity) {
	setDefault(&c.Mode, Secure)
	if id != nil && c.Mode != Insecure {
		claims := id.Claims()
		setDefault(&c.Cluster, claims.Cluster)
		setDefault(&c.Role, claims.Role)
		setDefault(&c.Node, claims.Node)
	}
	setDefault(&c.MaxConnections, 16<<10)
	setDefault(&c.MaxControl, 1024)
	setDefault(&c.MaxBulk, 256)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.PingInterval, 2*time.Second)
	setDefault(&c.IdleTimeout, 90*time.Second)
	setDefault(&c.StallTimeout, 30*time.Second)
	setDefault(&c.DrainTimeout, 5*time.Second)
}

func (c *ServerConfig) validate(deps *ServerDeps) error {
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "transport.NewServer", Ref: c.Node, Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
	}
	if err := c.Mode.Validate(); err != nil {
		return err
	}
	switch {
	case deps.Handler == nil:
		return bad("no handler")
	case len(c.Addresses) == 0:
		return bad("no address to listen at: set Addresses")
	case c.Mode != Insecure && deps.Identity == nil:
		return bad("mode %s needs a certificate", c.Mode)
	case !c.Role.Server():
		return bad("role %q is not that of a server", c.Role)
	case !pki.ValidNode(c.Node):
		return bad("invalid node id %q: set Node", c.Node)
	case c.MaxConnections < 1 || c.MaxControl < 1 || c.MaxBulk < 1 || c.MaxControl > maxInFlight || c.MaxBulk > maxInFlight:
		return bad("limits must be 1 to %d", maxInFlight)
	case min(c.HandshakeTimeout, c.PingInterval, c.IdleTimeout, c.StallTimeout, c.DrainTimeout) < time.Millisecond:
		return bad("timeouts must be at least %v", time.Millisecond)
	}
	if c.Mode != Insecure {
		if claims := deps.Identity.Claims(); claims.Node != c.Node || claims.Role != c.Role || claims.Cluster != c.Cluster {
			return bad("certificate is of %s %s in cluster %v, not of %s %s in %v",
				claims.Role, claims.Node, claims.Cluster, c.Role, c.Node, c.Cluster)
		}
	}
	return nil
}

// Server accepts connections and passes their requests to one Handler. If a handler
// panics, its caller gets an Internal error, and the panic is logged and counted.
// Requests are independent of each other. State that must not survive a panic (a
// device, a state machine) protects itself.
type Server struct {
	cfg      ServerConfig
	deps     ServerDeps
	log      *slog.Logger
	metrics  *Metrics
	clock    clock.Clock
	start    time.Time
	routine  goroutines
	workers  *workers
	atOnce   atOnceHandler // of deps.Handler; nil: it is none
	refusals *rate.Limiter // limits log lines; the metric counts all
	raft     *raftListener
	keys     *keyTable
	shares   *shares
	ready    chan struct{}
	slots    chan struct{} // one for each connection
	// The limits of the server and of a connection that callers wait for.
	connectionSlots, requestSlots limit.Resource

	cluster atomic.Pointer[moraine.UUID]

	mu        sync.Mutex // guards the fields below
	conns     map[*serverConn]struct{}
	streams   map[*serverConn]struct{} // of class Raft
	fresh     handshakes
	addresses []string
	stopping  bool
}

// NewServer checks cfg and deps; it opens nothing.
func NewServer(cfg ServerConfig, deps ServerDeps) (*Server, error) {
	cfg.setDefaults(deps.Identity)
	if err := cfg.validate(&deps); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, deps: deps, log: deps.Log, metrics: deps.Metrics, clock: deps.Clock, keys: newKeyTable(maxKeys), shares: newShares(cfg.MaxConnections / shareOfMost), workers: newWorkers(), refusals: rate.NewLimiter(5, 20),
		ready: make(chan struct{}), slots: make(chan struct{}, cfg.MaxConnections),
		conns: make(map[*serverConn]struct{}), streams: make(map[*serverConn]struct{})}
	s.clock = cmp.Or[clock.Clock](s.clock, clock.System{})
	s.log = cmp.Or(s.log, slog.New(slog.DiscardHandler))
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	s.atOnce, _ = deps.Handler.(atOnceHandler)
	s.start = s.clock.Now()
	reports := limit.NewReporter(s.log, s.metrics.waitsExceeded)
	s.connectionSlots = limit.Resource{Name: "connections of a server", Patience: cfg.HandshakeTimeout, Reports: reports}
	s.requestSlots = limit.Resource{Name: "requests of a connection", Patience: cfg.StallTimeout, Reports: reports,
		Advice: "the caller runs too many requests, or they hang"}
	s.raft = newRaftListener(cfg.Addresses[0])
	s.cluster.Store(&cfg.Cluster)
	return s, nil
}

// incarnation is the number of the metadata's incarnation, 0 while it is unknown.
func (s *Server) incarnation() uint64 {
	if s.deps.Incarnation == nil {
		return 0
	}
	return uint64(s.deps.Incarnation())
}

// Ready is closed when the server listens at all its addresses.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addresses returns where the server listens, once it is ready, with the actual
// ports instead of port 0.
func (s *Server) Addresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.addresses...)
}

// now is the clock of connections: nanoseconds since the server was made.
func (s *Server) now() int64 { return int64(s.clock.Since(s.start)) }

// Run listens and serves until ctx ends. Then it sends callers away, gives running
// requests DrainTimeout, and returns nil when all its goroutines have ended. It may
// be called once.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.listen(ctx)
	if err != nil {
		return err
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx)) // requests outlive ctx during the drain
	defer cancel()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		s.routine.run(func() { failed <- s.accept(base, l) })
	}
	close(s.ready)
	err = s.serveUntil(ctx, failed)
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	for _, l := range listeners {
		l.Close() //nolint:errcheck // it may have failed already
	}
	s.raft.Close() //nolint:errcheck // returns nil
	s.drain()
	cancel()
	s.closeAll()
	s.routine.wait()
	s.workers.stop()
	return err
}

// serveUntil supervises connections until ctx ends or a listener fails.
func (s *Server) serveUntil(ctx context.Context, failed <-chan error) error {
	tick := s.clock.NewTicker(min(time.Second, s.cfg.PingInterval/2, s.cfg.IdleTimeout/4, s.cfg.StallTimeout/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
			now := s.now()
			for _, c := range s.all() {
				c.check(now)
			}
			s.endRefused()
		}
	}
}

func (s *Server) listen(ctx context.Context) ([]net.Listener, error) {
	var listeners []net.Listener
	var addresses []string
	for _, addr := range s.cfg.Addresses {
		l, err := listen(ctx, addr)
		if err != nil {
			for _, l := range listeners {
				l.Close() //nolint:errcheck // nothing was accepted
			}
			return nil, &moraine.Error{Op: "transport.listen", Ref: addr, Kind: moraine.IOError, Err: err}
		}
		listeners = append(listeners, l)
		addresses = append(addresses, joinAddress(l.Addr()))
		if beside := s.listenShortCircuit(ctx, l); beside != nil {
			listeners = append(listeners, beside)
		}
	}
	s.mu.Lock()
	s.addresses = addresses
	s.mu.Unlock()
	s.raft.setAddr(addresses[0])
	return listeners, nil
}

// listen opens one listener. It replaces a unix socket that does not answer: a
// killed process left it.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	network, address := splitAddress(addr)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, address)
	if err == nil || network != "unix" {
		return l, err
	}
	if c, dialErr := net.DialTimeout(network, address, time.Second); dialErr == nil {
		c.Close() //nolint:errcheck // the dial only checked whether a server listens
		return nil, err
	}
	if st, statErr := os.Lstat(address); statErr != nil || st.Mode()&os.ModeSocket == 0 {
		return nil, err
	}
	if err := os.Remove(address); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, network, address)
}

// accept accepts connections until the listener is closed.
func (s *Server) accept(ctx context.Context, l net.Listener) error {
	var wait time.Duration
	for {
		nc, err := l.Accept()
		if err == nil {
			wait = 0
			s.awaitConnectionSlot()
			if !s.track(nc) {
				nc.Close() //nolint:errcheck // a failed close loses nothing
				<-s.slots
				continue
			}
			s.routine.run(func() {
				defer func() { <-s.slots }()
				s.serveConn(ctx, nc)
			})
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		// Most likely out of file descriptors: others may free some.
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		s.log.Warn("cannot accept", "addr", l.Addr().String(), "err", err)
		select {
		case <-s.clock.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// awaitConnectionSlot takes a slot for a connection. At the limit, the connection
// whose handshake runs longest loses its slot: real callers authenticate at once,
// so unauthenticated ones cannot hold the slots. If all are authenticated, callers
// wait in the kernel's queue, within their own timeouts, and the server logs it.
// Closed connections free slots.
func (s *Server) awaitConnectionSlot() {
	for took := false; !took; {
		select {
		case s.slots <- struct{}{}:
			return
		default:
		}
		s.displace()
		took = s.connectionSlots.Enter(context.Background(), s.slots) == nil
	}
}

// displace ends the connection whose handshake runs longest.
func (s *Server) displace() {
	s.mu.Lock()
	nc := s.fresh.oldest()
	s.mu.Unlock()
	if nc != nil {
		nc.Close() //nolint:errcheck // a failed close loses nothing
	}
}

// serveConn shakes hands and serves one connection, which is tracked, until it
// ends.
func (s *Server) serveConn(ctx context.Context, nc net.Conn) {
	c, err := s.shake(ctx, nc)
	s.untrack(nc)
	if err != nil {
		s.metrics.refused.WithLabelValues(kindName(err)).Inc()
		if s.refusals.Allow() {
			s.log.Info("connection refused", "addr", remoteAddress(nc), "err", err)
		}
		nc.Close() //nolint:errcheck // it was refused
		return
	}
	defer c.leave()
	class := c.class.String()
	gauge := s.metrics.connections.WithLabelValues(sideServer.String(), class, c.stream.LocalAddr().Network())
	gauge.Inc()
	defer gauge.Dec()
	if c.class == Raft {
		defer s.trackStream(c)()
		s.raft.serve(c)
		return
	}
	if !s.add(c) {
		c.close(errShutdown)
		return
	}
	c.serveUntilClosed()
	s.remove(c)
	s.log.Debug("connection ended", "node", c.peer.Load().Node, "class", class, "err", c.err)
}

func (s *Server) track(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.fresh.add(nc)
	}
	return !s.stopping
}

func (s *Server) untrack(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh.remove(nc)
}

func (s *Server) add(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.conns[c] = struct{}{}
	}
	return !s.stopping
}

func (s *Server) remove(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *Server) all() []*serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*serverConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// drain sends callers away and waits for running requests.
func (s *Server) drain() {
	conns := s.all()
	for _, c := range conns {
		c.sendGoAway()
	}
	deadline := s.clock.After(s.cfg.DrainTimeout)
	for _, c := range conns {
		select {
		case <-c.drained():
		case <-deadline:
			return
		}
	}
}

func (s *Server) closeAll() {
	s.mu.Lock()
	for nc := s.fresh.oldest(); nc != nil; nc = s.fresh.oldest() {
		nc.Close() //nolint:errcheck // a failed close loses nothing
	}
	s.mu.Unlock()
	for _, c := range s.all() {
		c.close(errShutdown)
	}
}
