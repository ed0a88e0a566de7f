// Package session is a client's connection to the metadata service. A Conn finds the leader and
// notices when another server becomes leader (endpointhealth.go). It opens and renews the
// session (session.go), numbers mutations so that each is applied at most once (window.go), and
// repeats requests without an answer. It caches names and attributes under cache leases
// (cache.go, leases.go).
//
// One path through it: Walk looks in the cache (cachewalk.go). For what no lease covers, Do
// sends a request under the current session. A mutation takes the next number of the session's
// window. Function exchange tries one server after the other until one answers. Function fill
// caches the answer under the leases that came with it (cachefill.go), until the service
// recalls one (cachedrop.go). Mounts lend what is cached to their kernels (loans.go).
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/delegation"
	"github.com/morainefs/moraine/client/internal/metrics"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// Conn talks to the metadata service: it finds the leader, keeps the session, numbers
// mutations, and repeats requests without an answer. Safe for concurrent use.
type Conn struct {
	attempt        time.Duration
	patience       time.Duration
	dialer         transport.Dialer
	servers        *servers
	endpointHealth *endpointHealth
	Clock          clock.Clock
	Log            *slog.Logger
	metrics        *metrics.Metrics
	random         io.Reader
	scope          string  // as Config.Scope
	resume         *Resume // as Config.Resume

	numbers limit.Resource   // requests of a session without an answer
	opening *limit.Semaphore // one unit, taken to open a session
	session atomic.Pointer[Session]
	// incarnation is the newest incarnation of the metadata that a server has named.
	incarnation atomic.Pointer[moraine.MarkedIncarnation]
	cache       *cache // nil if disabled
	// Desk works in delegated directories; nil if nothing is delegated.
	Desk *delegation.Desk
	// Orphans keeps open files that lose their names.
	Orphans *Orphans
	lister  *lister // nil without a cache
	// TopologyVersion is the last version that the service named.
	TopologyVersion atomic.Uint64
	// revoked is the version of the dialer's list of revoked servers. Both change together, under
	// revoking.
	revoked  atomic.Uint64
	revoking sync.Mutex
	// Quotas is whether the last reply about a session or a grant said that the cluster has
	// quotas.
	Quotas atomic.Bool
}

// Config says which servers to use, and how long to try.
type Config struct {
	Metadata       [][]string // the metadata servers, each as the addresses of one server
	Scope          string     // the directory to which the session is confined
	AttemptTimeout time.Duration
	Patience       time.Duration
	// CacheEntries bounds the cached names and attributes; 0 or less: none.
	CacheEntries int
	// Delegation lets the service delegate directories to the client. It needs a cache.
	Delegation bool
	// Resume names a session to take over; nil: none.
	Resume *Resume
}

// Deps are what a Conn works with. All but Reports are required.
type Deps struct {
	Dialer  transport.Dialer
	Clock   clock.Clock
	Log     *slog.Logger
	Metrics *metrics.Metrics
	Random  io.Reader
	// Files are those that the session keeps open although others remove them.
	Files Files
	// Reports receives the waits that exceeded the patience. May be nil.
	Reports *limit.Reporter
}

// waitFor describes how calls wait for a bounded resource of the connection.
func waitFor(name string, cfg *Config, deps *Deps) limit.Resource {
	return limit.Resource{Name: name, Patience: cfg.Patience, Advice: "look for metadata servers that do not answer", Reports: deps.Reports}
}

// New sends no request; Start opens the session.
func New(cfg Config, deps Deps) *Conn {
	m := &Conn{attempt: cfg.AttemptTimeout, patience: cfg.Patience, dialer: deps.Dialer,
		servers: newServers(deps.Dialer, cfg.Metadata), Clock: deps.Clock, Log: deps.Log,
		metrics: deps.Metrics, random: deps.Random, scope: cfg.Scope, resume: cfg.Resume,
		numbers: waitFor("requests in flight of a session", &cfg, &deps), opening: limit.NewSemaphore(1, waitFor("turn to open a session", &cfg, &deps))}
	m.Orphans = &Orphans{m: m, files: deps.Files}
	m.Orphans.resuming.Store(cfg.Resume != nil)
	if cfg.CacheEntries > 0 {
		m.cache = newCache(cfg.CacheEntries, deps.Clock, deps.Metrics)
		m.lister = newLister(m)
	}
	if m.cache != nil && cfg.Delegation {
		m.Desk = delegation.New(delegation.Deps{Service: delegated{m}, Clock: deps.Clock, Log: deps.Log, Metrics: deps.Metrics,
			Waits: waitFor("changes of delegated directories", &cfg, &deps), Loan: loanTime})
		m.cache.desk = m.Desk
	}
	m.endpointHealth = newEndpointHealth(m)
	return m
}

// SawTopology records a topology version from a reply of the service.
func (m *Conn) SawTopology(version uint64) {
	if version > 0 {
		m.TopologyVersion.Store(version)
	}
}

// Do makes one request under the current session; see raw.Client.Meta.
func (m *Conn) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, _, err := m.DoIn(ctx, req)
	return resp, err
}

// DoIn is Do that also returns the session under which the service answered.
func (m *Conn) DoIn(ctx context.Context, req *wire.MetaRequest) (resp *wire.MetaResponse, s *Session, err error) {
	resp, err = throughDesk(ctx, m.Desk, req, func() (*wire.MetaResponse, error) {
		resp, s, err = m.pastDesk(ctx, req)
		return resp, err
	})
	if s == nil {
		s = m.Current()
	}
	return resp, s, err
}

// pastDesk is DoIn for what the desk does not answer.
func (m *Conn) pastDesk(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, *Session, error) {
	began := m.Clock.Now()
	defer func() { m.metrics.MetaSeconds.Observe(m.Clock.Since(began).Seconds()) }()
	op := ops.Of(req)
	if op == nil {
		return nil, nil, &moraine.Error{Op: "metadata", Kind: moraine.InvalidArgument, Err: errors.New("the request has no operation")}
	}
	mutation := op.Numbered(req)
	for range MaxSessions {
		s := m.Current()
		resp, unknown, err := m.once(ctx, req, s, mutation)
		if !retry.IsKind(err, moraine.SessionExpired) {
			return resp, s, err
		}
		_, oerr := m.open(ctx, s)
		if mutation && (unknown || op.Owned) {
			return nil, s, err // the opening of another session says nothing about this request
		}
		if oerr != nil {
			return nil, s, oerr
		}
	}
	return nil, nil, &moraine.Error{Op: opName(req), Kind: moraine.SessionExpired,
		Err: fmt.Errorf("%d sessions in a row expired", MaxSessions)}
}

// DoUnder makes a mutation of something that s owns, under s and no other session. If s has
// ended the error is SessionExpired, and later requests run under another session.
func (m *Conn) DoUnder(ctx context.Context, req *wire.MetaRequest, s *Session) (*wire.MetaResponse, error) {
	return throughDesk(ctx, m.Desk, req, func() (*wire.MetaResponse, error) { return m.under(ctx, req, s) })
}

// under is DoUnder for what the desk does not answer.
func (m *Conn) under(ctx context.Context, req *wire.MetaRequest, s *Session) (*wire.MetaResponse, error) {
	began := m.Clock.Now()
	defer func() { m.metrics.MetaSeconds.Observe(m.Clock.Now().Sub(began).Seconds()) }()
	resp, _, err := m.once(ctx, req, s, true)
	if retry.IsKind(err, moraine.SessionExpired) {
		// Renewals open a session in any case; an error here does not matter.
		_, _ = m.open(ctx, s)
	}
	return resp, err
}

// MaxSessions bounds the sessions under which one request is tried.
const MaxSessions = 3

// once makes the request under one session. unknown says that an attempt may have taken effect
// without an answer.
func (m *Conn) once(ctx context.Context, req *wire.MetaRequest, s *Session, mutation bool) (
	resp *wire.MetaResponse, unknown bool, err error) {
	if !mutation {
		return m.exchange(ctx, req, s, 0)
	}
	n, err := s.numbers.take(ctx)
	if err != nil {
		return nil, false, err
	}
	defer func() { s.numbers.end(n, unknown && err != nil) }()
	named, epoch := m.cache.putAside(req, s.Id)
	if m.cache != nil {
		m.cache.loans.before(ctx, req)
	}
	stamped := &wire.MetaRequest{Partition: req.Partition, RoutingEpoch: req.RoutingEpoch, LeaseEpoch: epoch, Op: req.Op}
	resp, unknown, err = m.exchange(ctx, stamped, s, n)
	for req.GetBatch() != nil && retry.IsKind(err, moraine.Timeout) && ctx.Err() == nil {
		// Its changes have been answered: it is sent, under its number, until the session ends.
		resp, unknown, err = m.exchange(ctx, stamped, s, n)
		unknown = true
	}
	// The desk had kernels forget what a batch changes, before it was queued.
	if o := m.cache.takeUp(req, named, resp.GetLease(), err != nil, unknown); !o.until.IsZero() && req.GetBatch() == nil {
		m.cache.loans.settle(ctx, o)
	}
	if unknown {
		err = unsure(ctx, opName(req), err)
	}
	return resp, unknown, err
}

// unsure returns the error of a mutation of which an earlier attempt may have taken effect. A
// server refuses some requests before it looks up the first answer; such an error concerns only
// the last attempt. A context may also end for any reason. Both become Timeout or Canceled.
// Other errors are first answers and stay.
func unsure(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	switch moraine.KindOf(err) {
	case moraine.Timeout, moraine.Canceled, moraine.SessionExpired:
		return err
	case moraine.NoSpace, moraine.Unauthenticated, moraine.PermissionDenied, moraine.WrongCluster, moraine.Unimplemented, moraine.Misrouted:
	default:
		if ctx.Err() == nil {
			return err
		}
	}
	kind := moraine.Timeout
	if errors.Is(ctx.Err(), context.Canceled) {
		kind = moraine.Canceled
	}
	return &moraine.Error{Op: op, Kind: kind, Err: fmt.Errorf("an answer was lost, so the request may have taken effect; the next attempt failed: %w", err)}
}

// Quick makes one attempt, and another after a redirect or with a new routing. It is for
// callers that should not wait.
func (m *Conn) Quick(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	m.metrics.MetaRequests.Inc()
	for try := 0; ; try++ {
		stub, addrs := m.servers.current()
		session := m.Current()
		resp, err := m.try(ctx, stub, addrs, stamp(req, session, 0), 0)
		if retry.IsKind(err, moraine.Misrouted) && try < 2 {
			if err := m.reroute(ctx, session); err != nil {
				return nil, err
			}
			continue
		}
		if err == nil || try == 2 || ctx.Err() != nil || !retry.IsTransient(err) {
			return resp, err
		}
		if !retry.IsKind(err, moraine.NotLeader) {
			return nil, err
		}
		if leader, another := m.servers.failedWith(addrs, err); len(leader) == 0 || !another {
			return nil, err
		}
	}
}

const (
	// longSilence is after how long without an answer the client logs a warning.
	longSilence = 5 * time.Second
	// electing is for how long the service may lack a healthy leader during an election.
	// electionPause is the longest pause between two attempts until then, so that requests find
	// the next leader soon after it begins to serve.
	electing      = 3 * time.Second
	electionPause = 100 * time.Millisecond
	// maxHops bounds the redirects that the client follows without a pause.
	maxHops = 2
)

// exchange sends a request to one server after the other until one answers.
func (m *Conn) exchange(ctx context.Context, req *wire.MetaRequest, s *Session, number uint64) (
	resp *wire.MetaResponse, unknown bool, err error) {
	m.metrics.MetaRequests.Inc()
	op := ops.Of(req)
	wait := op.Wait(req)
	began := m.Clock.Now()
	var named []string // leader that the last followed redirect named
	hops := 0          // redirects followed since the last pause
	warned, reroutes, refused := false, 0, 0
	for try := 0; ; try++ {
		stub, addrs := m.servers.current()
		stamped := stamp(req, s, number)
		resp, err := m.try(ctx, stub, addrs, stamped, wait)
		if err == nil {
			if number != 0 && op.Logged(req) {
				s.numbers.reported(stamped.Abandoned)
			}
			return resp, unknown, nil
		}
		if try == 0 {
			// Only now: each attempt has its own bound, and most requests make one.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, m.patience+wait-m.Clock.Since(began))
			defer cancel()
		}
		if ctx.Err() != nil {
			return nil, true, retry.ContextErrorAfter(ctx, opName(req), err)
		}
		if retry.IsKind(err, moraine.Misrouted) && reroutes < maxReroutes {
			reroutes++
			if rerr := m.reroute(ctx, s); rerr != nil {
				return nil, unknown, rerr
			}
			continue
		}
		if retry.IsKind(err, moraine.Unauthenticated) && refused < len(m.servers.others(addrs)) {
			refused++ // one server's bad certificate says nothing of the others
			m.servers.failed(addrs, nil)
			continue
		}
		if !retry.IsTransient(err) {
			return nil, unknown, err
		}
		unknown = unknown || !retry.IsKind(err, moraine.NotLeader) // such a server has not begun
		m.metrics.MetaRetries.Inc()
		waited := m.Clock.Since(began) - wait
		if waited > longSilence && !warned {
			warned = true
			m.Log.Warn("the metadata service does not answer; still trying", "request", opName(req), "err", err)
		}
		// Follow a redirect at once, unless the one before named the same server. Then it comes
		// from a server that has not noticed yet that its leader is dead.
		leader, another := m.servers.failedWith(addrs, err)
		if another && len(leader) > 0 && hops < maxHops && !slices.Equal(leader, named) {
			named, hops = leader, hops+1
			continue
		}
		hops = 0
		longest := time.Second
		if waited < electing {
			longest = electionPause
		}
		if !retry.PauseUpTo(ctx, m.Clock, try, longest) {
			return nil, unknown, retry.ContextErrorAfter(ctx, opName(req), err)
		}
	}
}

// stamp returns the message of one attempt. Each attempt has its own, because a transport may
// still read the message of an abandoned one.
func stamp(req *wire.MetaRequest, s *Session, number uint64) *wire.MetaRequest {
	r := &wire.MetaRequest{Partition: req.Partition, LeaseEpoch: req.LeaseEpoch,
		Op: req.Op, Number: number}
	if s != nil {
		r.Session, r.RoutingEpoch = s.Id, s.routing.Load()
		if number != 0 {
			r.AckedBelow, r.Abandoned = s.numbers.acked()
		}
	}
	return r
}

// opName names a request in errors.
func opName(req *wire.MetaRequest) string {
	name := fmt.Sprintf("%T", req.GetOp())
	return strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
}
