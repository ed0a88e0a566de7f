package session

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// Session is the client's registration with the service. Only its token, its routing and the
// time of its last renewal change; another Session replaces one that ended.
type Session struct {
	Id   uint64
	Root moraine.InodeID
	// Cluster and Incarnation are of the metadata in which the session was opened.
	Cluster     moraine.UUID
	Incarnation moraine.MarkedIncarnation
	term        time.Duration
	numbers     *window
	// leases says that the service grants this session leases.
	leases bool
	// tokenRenew is when, in unix seconds, the client requests a new token.
	tokenRenew atomic.Int64
	// renewed is when the client sent the last renewal that succeeded.
	renewed atomic.Pointer[time.Time]
	// routing is the newest routing epoch that a reply about the session named. It belongs to the
	// session: restored metadata may have a lower epoch, and has ended every session.
	routing atomic.Uint64
	// lingered is the last file without a name that a renewal named. The session keeps what it
	// has open of those up to the number kept.
	lingered, kept atomic.Uint64
}

// ErrClosed is the error of work left undone when the client was closed.
var ErrClosed = errors.New("the client is closed")

// ErrPutLost is the error of bytes whose session ended before their commit.
var ErrPutLost = errors.New("the session ended before the bytes that it had sent were committed")

// Start opens the first session. Until life ends, goroutines of running keep the session, its
// leases and the health of the servers. ctx bounds only the opening. On error the caller ends
// life.
func (m *Conn) Start(ctx, life context.Context, running *sync.WaitGroup) error {
	// Before the session is open: the first server may be down.
	running.Go(func() { m.endpointHealth.run(life) })
	if err := m.openFirst(ctx); err != nil {
		return err
	}
	running.Go(func() { m.renewEvery(life) })
	if m.cache != nil {
		m.Desk.Start(life, running)
		running.Go(func() { m.keepLeases(life) })
		running.Go(func() { m.cache.dropEach(life, running.Go) })
		running.Go(func() { m.lister.run(life, running.Go) })
	}
	return nil
}

// Forget empties the cache: from here on the client carries out no recalls.
func (m *Conn) Forget() { m.cache.reset() }

// Doubtful reports whether the session may have ended without the client's knowledge.
func (m *Conn) Doubtful(s *Session) bool {
	at := s.renewed.Load()
	return at == nil || m.Clock.Since(*at) > s.term*3/4
}

// Current returns the current session.
func (m *Conn) Current() *Session { return m.session.Load() }

// open opens the first session, or the next one in place of old. If another caller has replaced
// old meanwhile, it returns that session.
func (m *Conn) open(ctx context.Context, old *Session) (*Session, error) {
	if err := m.opening.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer m.opening.Release(1)
	if s := m.session.Load(); s != old {
		return s, nil
	}
	nonce := make([]byte, nonceBytes)
	if _, err := io.ReadFull(m.random, nonce); err != nil {
		return nil, &moraine.Error{Op: "open session", Kind: moraine.Internal, Err: err}
	}
	return m.openBy(ctx, nonce, old)
}

// nonceBytes is the length of a session's nonce.
const nonceBytes = 16

// openBy is open with a nonce. A live session of that nonce is that session. The caller has the
// turn to open.
func (m *Conn) openBy(ctx context.Context, nonce []byte, old *Session) (*Session, error) {
	req := &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Nonce: nonce, Scope: m.scope, Leases: m.cache != nil, Opens: true}}}
	began := m.Clock.Now()
	resp, _, err := m.exchange(ctx, req, nil, 0)
	if err != nil {
		return nil, err
	}
	r := resp.GetSession()
	if r.GetSession() == 0 || r.GetTermMillis() == 0 {
		return nil, retry.BadReply("open session")
	}
	s := &Session{Id: r.Session, Root: moraine.InodeID(r.Root), numbers: newWindow(&m.numbers, m.resume.firstNumber()), leases: r.Leases,
		term: time.Duration(r.TermMillis) * time.Millisecond, Incarnation: transport.MarkedIncarnation(r.Incarnation, r.Mark)}
	copy(s.Cluster[:], r.Cluster)
	s.renewed.Store(&began)
	s.sawRouting(r.RoutingEpoch)
	m.sawQuotas(r)
	m.takeToken(s, r)
	m.takeRevoked(r)
	m.cache.reset()
	m.session.Store(s)
	m.resume.opened(nonce, s.Id)
	m.servers.learn(r.Metadata)
	m.metrics.Sessions.Inc()
	m.SawTopology(r.TopologyVersion)
	if old != nil {
		m.Log.Warn("the session had expired; a new one is open",
			"old", moraine.SessionID(old.Id), "session", moraine.SessionID(s.Id))
	}
	return s, nil
}

// takeToken gives a new token to the data connections.
func (m *Conn) takeToken(s *Session, r *wire.SessionReply) {
	if len(r.Token) == 0 {
		return
	}
	m.dialer.SetToken(r.Token)
	now := m.Clock.Now().Unix()
	s.tokenRenew.Store(now + max(0, r.TokenExpires-now)/2)
}

// takeRevoked stops calls to servers with revoked certificates.
func (m *Conn) takeRevoked(r *wire.SessionReply) {
	m.revoking.Lock()
	defer m.revoking.Unlock()
	if v := r.GetRevokedVersion(); v != m.revoked.Swap(v) {
		m.dialer.SetRevoked(transport.NewRevocations(r.GetRevoked()))
		m.Log.Info("the list of servers with revoked certificates changed", "revoked", len(r.GetRevoked()))
	}
}

// renewal returns a request that renews the session.
func (m *Conn) renewal(s *Session, wantToken bool) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{WantToken: wantToken,
		RevokedVersion: m.revoked.Load(), Lingered: s.kept.Load()}}}
}

// Renew renews the session once, and opens another one if it has ended.
func (m *Conn) Renew(ctx context.Context, wantToken bool) error {
	s := m.Current()
	wantToken = wantToken || m.Clock.Now().Unix() >= s.tokenRenew.Load()
	began := m.Clock.Now()
	resp, _, err := m.exchange(ctx, m.renewal(s, wantToken), s, 0)
	if retry.IsKind(err, moraine.SessionExpired) {
		_, err = m.open(ctx, s)
		return err
	}
	if retry.IsKind(err, moraine.Unauthenticated) {
		// The certificate was revoked, or has expired. The client may then not use cached content
		// either, whatever the remaining time of its leases.
		m.cache.reset()
	}
	if err != nil {
		return err
	}
	s.renewed.Store(&began)
	r := resp.GetSession()
	s.sawLingered(r.GetLingered())
	m.takeToken(s, r)
	m.takeRevoked(r)
	m.servers.learn(r.GetMetadata())
	m.SawTopology(r.GetTopologyVersion())
	s.sawRouting(r.GetRoutingEpoch())
	m.sawQuotas(r)
	return nil
}

// renewEvery renews the session until ctx ends, several times in each term, so
// that a failover or a few lost packets do not end it.
func (m *Conn) renewEvery(ctx context.Context) {
	for {
		every := min(max(m.Current().term/12, time.Second/10), 5*time.Second)
		select {
		case <-ctx.Done():
			return
		case <-m.Clock.After(every):
		}
		if err := m.Renew(ctx, false); err != nil && ctx.Err() == nil {
			m.Log.Warn("the session could not be renewed", "session", moraine.SessionID(m.Current().Id), "err", err)
		}
		if err := m.Orphans.keepOpen(ctx); err != nil && ctx.Err() == nil {
			m.Log.Warn("the client could not keep the open files that others have removed; it tries again", "err", err)
		}
	}
}

// Close ends the session at the service, which ends its grants and unlinked files. One try is
// enough: a session that is not closed expires.
func (m *Conn) Close(ctx context.Context) error {
	s := m.Current()
	if s == nil {
		return nil
	}
	if m.cache != nil {
		m.cache.loans.awaitAll(ctx)
	}
	n, err := s.numbers.take(ctx)
	if err != nil {
		return err
	}
	req := &wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}
	_, _, err = m.exchange(ctx, req, s, n)
	if retry.IsKind(err, moraine.SessionExpired) {
		return nil
	}
	return err
}

// sawQuotas records that a reply about the session said that there are quotas. A reply
// without that may be older than a grant that said so. Grants also report when there are none any
// longer.
func (m *Conn) sawQuotas(r *wire.SessionReply) {
	if r.GetQuotas() {
		m.Quotas.Store(true)
	}
}
