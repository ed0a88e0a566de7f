package transport

import (
	"context"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
)

// peer is one server as a pool sees it: its connections, by class.
type peer struct {
	pool  *Pool
	key   string
	role  Role
	node  string // "" accepts any node of the role
	addrs []string

	besideAt atomic.Int64 // time from which the unix sockets are tried again

	mu       sync.Mutex // guards the fields below
	conns    [Raft + 1][]*clientConn
	dialing  [Raft + 1]*attempt
	next     int // address to try first
	failures int // consecutive failed attempts
	retryAt  int64
	lastErr  error
	lastUse  int64
	shared   *sharedKey // mode crc
	closed   bool
}

// attempt is one attempt to connect. Any number of calls wait for it.
type attempt struct {
	token []byte // the pool's token at its start
	done  chan struct{}
	err   error // set before done is closed
}

func newPeer(p *Pool, key string, role Role, node string, addrs []string) *peer {
	pr := &peer{pool: p, key: key, role: role, node: node, addrs: slices.Clone(addrs), lastUse: p.now()}
	if len(addrs) > 0 {
		pr.next = rand.IntN(len(addrs))
	}
	return pr
}

// name is the peer's name in errors.
func (pr *peer) name() string {
	if pr.node != "" {
		return pr.node
	}
	return strings.Join(pr.addrs, ",")
}

// limit is how many connections of a class the peer may have.
func (pr *peer) limit(c Class) int {
	if c == Bulk {
		return pr.pool.cfg.BulkConnections
	}
	return 1
}

// Call implements Caller.
func (pr *peer) Call(ctx context.Context, req *Call) (int, error) {
	p := pr.pool
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.cfg.RequestTimeout)
		defer cancel()
	}
	began := p.now()
	gauge := p.metrics.sides[sideClient].inFlight[req.Class]
	gauge.Inc()
	n, err := pr.call(ctx, req)
	gauge.Dec()
	p.metrics.done(sideClient, req.Kind, time.Duration(p.now()-began), err)
	return n, err
}

func (pr *peer) call(ctx context.Context, req *Call) (int, error) {
	for {
		c, err := pr.acquire(ctx, req.Class)
		if err != nil {
			return 0, err
		}
		n, err := c.do(ctx, req)
		c.busy.Add(-1)
		// A request of which nothing was sent uses another connection; each retry
		// leaves one fewer dead one.
		if unsent, ok := err.(errNotSent); ok { //nolint:errorlint // never wrapped
			if ctx.Err() == nil {
				continue
			}
			return 0, unsent.error
		}
		return n, err
	}
}

// acquire returns a connection whose busy count it has raised.
func (pr *peer) acquire(ctx context.Context, class Class) (*clientConn, error) {
	for {
		c, a, err := pr.choose(class)
		if c != nil || err != nil {
			return c, err
		}
		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		case <-ctx.Done():
			return nil, gaveUp(ctx, "transport.dial", pr.name())
		}
	}
}

// choose returns the least busy connection, or the attempt to wait for. If all are
// busy and more are allowed, it starts another attempt and does not wait for it.
func (pr *peer) choose(class Class) (*clientConn, *attempt, error) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	now := pr.pool.now()
	pr.lastUse = now
	var best *clientConn
	for _, c := range pr.conns[class] {
		if c.usable() && (best == nil || c.busy.Load() < best.busy.Load()) {
			best = c
		}
	}
	if best != nil {
		if best.busy.Load() > 0 && len(pr.conns[class]) < pr.limit(class) && pr.dialing[class] == nil && now >= pr.retryAt {
			pr.dialLocked(class)
		}
		best.busy.Add(1)
		best.lastUse.Store(now)
		return best, nil, nil
	}
	if a := pr.dialing[class]; a != nil {
		return nil, a, nil
	}
	if pr.failures > 0 && now < pr.retryAt {
		return nil, nil, pr.lastErr
	}
	a := pr.dialLocked(class)
	return nil, a, nil
}

// forgive ends the wait after an attempt that was refused for its token: with
// another token the next attempt may succeed at once.
func (pr *peer) forgive() {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if errors.Is(pr.lastErr, moraine.Unauthenticated) {
		pr.failures, pr.lastErr, pr.retryAt = 0, nil, 0
	}
}

// dialLocked starts an attempt. pr.mu is held.
func (pr *peer) dialLocked(class Class) *attempt {
	a := &attempt{done: make(chan struct{})}
	pr.dialing[class] = a
	pr.pool.routine.run(func() {
		a.token = pr.pool.currentToken()
		c, err := pr.dial(class)
		pr.dialed(class, a, c, err)
	})
	return a
}

// dial tries the addresses in turn.
func (pr *peer) dial(class Class) (*clientConn, error) {
	if err := pr.pool.adopt(pr); err != nil {
		return nil, err
	}
	if len(pr.addrs) == 0 {
		return nil, &moraine.Error{Op: "transport.dial", Ref: pr.name(), Kind: moraine.Unavailable, Err: errors.New("no address known for the server")}
	}
	pr.mu.Lock()
	first := pr.next
	pr.next++
	pr.mu.Unlock()
	var errs []error
	for i := range pr.addrs {
		c, err := pr.dialAddr(class, pr.addrs[(first+i)%len(pr.addrs)])
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if pr.pool.ctx.Err() != nil {
			break
		}
	}
	// A refusal with a reason says more than an unreachable address.
	for _, err := range errs {
		if !errors.Is(err, moraine.Unavailable) {
			return nil, err
		}
	}
	return nil, errs[0]
}

func (pr *peer) dialAddr(class Class, addr string) (*clientConn, error) {
	ctx, cancel := context.WithTimeout(pr.pool.ctx, pr.pool.cfg.DialTimeout)
	defer cancel()
	c, err := pr.connect(ctx, class, addr)
	pr.pool.metrics.dials.WithLabelValues(kindName(err)).Inc()
	return c, err
}

// dialed ends an attempt.
func (pr *peer) dialed(class Class, a *attempt, c *clientConn, err error) {
	pr.mu.Lock()
	pr.dialing[class] = nil
	closed := pr.closed
	var overtaken bool // refused for a token that was replaced meanwhile
	if overtaken = errors.Is(err, moraine.Unauthenticated) && string(a.token) != string(pr.pool.currentToken()); overtaken {
		// forgive came before the failure was recorded. The waiting calls choose
		// again, and so dial with the new token.
		pr.failures, pr.lastErr, pr.retryAt = 0, nil, 0
	} else if err != nil {
		pr.failures++
		pr.lastErr = err
		wait := min(pr.pool.cfg.MaxBackoff, pr.pool.cfg.MinBackoff<<min(pr.failures-1, 16))
		wait = wait/2 + rand.N(wait) // jitter: the callers of a restarted server do not all come at once
		pr.retryAt = pr.pool.now() + int64(wait)
	} else {
		pr.failures, pr.lastErr, pr.retryAt = 0, nil, 0
		if !closed {
			pr.conns[class] = append(pr.conns[class], c)
			pr.pool.routine.run(c.readLoop)
		}
	}
	if !overtaken {
		a.err = err
	}
	close(a.done)
	pr.mu.Unlock()
	switch {
	case err != nil:
		pr.pool.log.Debug("no connection", "server", pr.name(), "class", class.String(), "err", err)
	case closed:
		c.close(errShutdown)
	default:
		pr.pool.metrics.connections.WithLabelValues(sideClient.String(), class.String(), c.stream.LocalAddr().Network()).Inc()
		pr.pool.refresh(c) // the token may have changed since the hello
	}
}

// open returns the connections of a class.
func (pr *peer) open(class Class) []*clientConn {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return slices.Clone(pr.conns[class])
}

// onClosed forgets a closed connection.
func (p *Pool) onClosed(c *clientConn) {
	pr := c.peer
	pr.mu.Lock()
	i := slices.Index(pr.conns[c.class], c)
	if i >= 0 {
		pr.conns[c.class] = slices.Delete(pr.conns[c.class], i, i+1)
	}
	pr.mu.Unlock()
	if i >= 0 {
		p.metrics.connections.WithLabelValues(sideClient.String(), c.class.String(), c.stream.LocalAddr().Network()).Dec()
		p.log.Debug("connection ended", "server", pr.name(), "class", c.class.String(), "err", c.err)
	}
}

// check supervises the peer's connections and reports whether the pool may forget
// the peer.
func (pr *peer) check(now int64, current *x509.Certificate) bool {
	idle := true
	pr.checkKey(current)
	for class := Control; class <= Bulk; class++ {
		for _, c := range pr.open(class) {
			idle = false
			c.checkCert(current, pr.pool.clock.Now())
			c.checkRevoked()
			c.check(now, &pr.pool.cfg)
			c.traffic.report(pr.pool.metrics, sideClient, class, c.w.bytes.Load(), c.r.bytes.Load())
		}
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return idle && time.Duration(now-pr.lastUse) > forgetAfter
}

func (pr *peer) close() {
	pr.mu.Lock()
	pr.closed = true
	var all []*clientConn
	for _, conns := range pr.conns {
		all = append(all, conns...)
	}
	pr.mu.Unlock()
	for _, c := range all {
		c.close(errShutdown)
	}
}
