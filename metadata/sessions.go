package metadata

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// sessions is the leader's memory of which sessions are alive. What a session
// owns is in the state; when it was last renewed is only here.
type sessions struct {
	timeout time.Duration
	most    int // live sessions of one certificate

	mu   sync.Mutex // guards what follows
	byID map[uint64]*session
	// of and opening count the sessions of each certificate: in byID, and being opened.
	of, opening map[state.Principal]int
	refused     time.Time // when a refused session was last logged
}

// session is one live session. Its identity never changes.
type session struct {
	// Peer is the connection that last asked for something under the session; nil
	// where none has asked this leader.
	peer      atomic.Pointer[transport.Peer]
	principal state.Principal // of the certificate that opened it
	node      string
	root      uint64 // inode that its paths start at
	readOnly  bool
	all       bool // its scope is the root
	tenants   []moraine.Tenant
	renewed   time.Time
	leases    bool // it may hold leases
	ending    bool // its end is decided: it cannot be renewed any more
}

func newSessions(timeout time.Duration, most int) *sessions {
	return &sessions{timeout: timeout, most: most, byID: make(map[uint64]*session),
		of: make(map[state.Principal]int), opening: make(map[state.Principal]int)}
}

func (s *sessions) add(id uint64, ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.byID[id]; !known {
		s.byID[id] = ses
		s.of[ses.principal]++
	}
}

func (s *sessions) remove(ids []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if ses := s.byID[id]; ses != nil {
			delete(s.byID, id)
			less(s.of, ses.principal)
		}
	}
}

func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// scopes returns the directories that live sessions are confined to.
func (s *sessions) scopes() map[moraine.InodeID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	roots := make(map[moraine.InodeID]bool)
	for _, ses := range s.byID {
		if !ses.all {
			roots[moraine.InodeID(ses.root)] = true
		}
	}
	return roots
}

// holding returns those that may hold leases.
func (s *sessions) holding() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint64
	for id, ses := range s.byID {
		if ses.leases {
			ids = append(ids, id)
		}
	}
	return ids
}

// Live returns a session that has not ended.
func (s *sessions) live(id uint64) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byID[id]
	if ses == nil || ses.ending {
		return nil, sessionExpired(id)
	}
	return ses, nil
}

// renew gives a session a full term from now on. Only a leader that has just
// proved that it leads may call it.
func (s *sessions) renew(id uint64, now time.Time) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byID[id]
	if ses == nil || ses.ending {
		return nil, sessionExpired(id)
	}
	if now.After(ses.renewed) {
		ses.renewed = now
	}
	return ses, nil
}

// LeasesOf implements leases.Sessions.
func (s *sessions) LeasesOf(id uint64) (confined, may bool, err error) {
	ses, err := s.live(id)
	if err != nil {
		return false, false, err
	}
	return !ses.all, ses.leases, nil
}

// RenewLeases implements leases.Sessions.
func (s *sessions) RenewLeases(id uint64, now time.Time) (confined, may bool, err error) {
	ses, err := s.renew(id, now)
	if err != nil {
		return false, false, err
	}
	return !ses.all, ses.leases, nil
}

// RenewAll gives every session a full term anew.
func (s *sessions) renewAll(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.byID {
		ses.renewed = now
	}
}

// overdue returns the sessions whose term has ended, and decides their end: from then on
// nothing renews them.
func (s *sessions) overdue(now time.Time) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []uint64
	for id, ses := range s.byID {
		if ses.ending || now.Sub(ses.renewed) > s.timeout {
			ses.ending = true
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// sessionExpired is the error for a session that is not alive, and for another caller's:
// nobody learns which sessions there are.
func sessionExpired(id uint64) error {
	return &moraine.Error{Ref: moraine.SessionID(id).String(), Kind: moraine.SessionExpired,
		Err: fmt.Errorf("the session has ended, or another certificate opened it: open a new one")}
}

// admitSession holds a call that names a session against the leader's memory:
// the session must be alive and the caller's own. What the session allows is
// the state machine's to judge.
func (l *leader) admitSession(o *op, c *lead.Call) error {
	id := c.Req.Session
	if id == 0 {
		if o.session {
			return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request needs a session")}
		}
		return nil
	}
	ses, err := l.sessions.live(id)
	if err != nil {
		return err
	}
	if !ses.of(c.Caller) {
		return sessionExpired(id)
	}
	if ses.peer.Load() != c.Peer {
		l.met(ses, c)
	}
	return nil
}

// of reports whether the caller's certificate opened the session.
func (s *session) of(c *statepb.Caller) bool {
	return s.node == c.Node && s.principal == state.PrincipalOf(c)
}

// openSession makes a session. A repeated request finds the session it made.
func (l *leader) openSession(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	req, err := openSessionRequest(c)
	if err != nil {
		return nil, err
	}
	release, err := l.admitOpening(c, req.GetOpenSession())
	if err != nil {
		return nil, err
	}
	defer release()
	err = l.Speaks(ctx, state.LevelAnswers)
	if err != nil && moraine.KindOf(err) != moraine.Unimplemented {
		return nil, err
	}
	req.GetOpenSession().KeepsAnswer = err == nil
	for range maxDraws {
		if req.GetOpenSession().Drawn, err = l.drawNumber(); err != nil {
			return nil, err
		}
		cmd := &statepb.Command{Caller: c.Caller, Op: &statepb.Command_Request{Request: req}}
		began := l.Clock.Now()
		res, err := l.proposer.propose(ctx, l.Done, cmd, func(r *state.Result) { l.opened(r, began) })
		switch failed := res.Response.GetError(); {
		case err != nil:
			return nil, err
		case moraine.Kind(failed.GetKind()) == moraine.Exists && failed != nil:
			continue // another session has the number
		case failed != nil:
			return res.Response, nil
		}
		id := res.Response.GetSession().GetSession()
		if ses, err := l.sessions.live(id); err == nil {
			l.met(ses, c)
		}
		return l.sessionReply(id, true, 0)
	}
	return nil, &moraine.Error{Kind: moraine.Busy, Err: fmt.Errorf("%d random session numbers in a row were in use; ask again", maxDraws)}
}

// maxDraws bounds how many numbers one OpenSession draws: one of a million
// sessions meets another with a chance of 1 to a million.
const maxDraws = 4

// drawNumber returns the random part of a session's number, which is not 0. It
// goes into the command, so that every replica opens the same session.
func (l *leader) drawNumber() (uint64, error) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(l.deps.Rand, b[3:]); err != nil {
			return 0, &moraine.Error{Kind: moraine.Internal, Err: err}
		}
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

// opened takes a session that an entry opened into memory, whether or not its
// client is still there: only what is in memory expires.
func (l *leader) opened(r *state.Result, began time.Time) {
	reply := r.Response.GetSession()
	if r.Response.GetError() != nil || reply == nil {
		return
	}
	err := l.Store.View(func(r state.Reader, _ uint64) error {
		info, err := l.Machine.Session(r, moraine.SessionID(reply.Session))
		if err != nil {
			return err
		}
		ses, err := l.session(r, info, began)
		if err != nil {
			return err
		}
		l.sessions.add(reply.Session, ses)
		_, err = l.sessions.renew(reply.Session, began) // a repeated OpenSession is a renewal, too
		return err
	})
	if err != nil && !errors.Is(err, moraine.SessionExpired) {
		l.Log.Error("could not read a session that was opened", "session", moraine.SessionID(reply.Session), "err", err)
	}
}

// session is a live session as this leader keeps it in memory.
func (l *leader) session(r state.Reader, info state.SessionInfo, renewed time.Time) (*session, error) {
	tenants, all, err := l.Machine.Tenants(r, info.Root)
	if err != nil && !errors.Is(err, moraine.NotFound) { // its directory may be gone: then it has no tenant
		return nil, err
	}
	return &session{principal: info.Principal, node: info.Node, root: uint64(info.Root), readOnly: info.ReadOnly, tenants: tenants, all: all, renewed: renewed, leases: info.Leases}, nil
}

// renewSession grants another term, after a round that proves that this server
// still leads.
func (l *leader) renewSession(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if c.Req.Session == 0 {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("no session is named")}
	}
	began := l.Clock.Now()
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	if _, err := l.sessions.renew(c.Req.Session, began); err != nil {
		return nil, err
	}
	op := c.Req.GetRenewSession()
	return l.sessionReply(c.Req.Session, op.GetWantToken(), op.GetRevokedVersion())
}

// sessionReply says what a session's client must know, with a token if asked, and the
// revoked servers where the client has another version of that list.
func (l *leader) sessionReply(id uint64, token bool, revoked uint64) (*wire.MetaResponse, error) {
	ses, err := l.sessions.live(id)
	if err != nil {
		return nil, err
	}
	reply := &wire.SessionReply{
		Session: id, TermMillis: uint64(l.cfg.SessionTimeout.Milliseconds()), Root: ses.root,
		Cluster: l.Cluster.UUID[:], Incarnation: uint64(l.Cluster.Incarnation), Mark: l.mark(), TopologyVersion: l.fleet.Topology.View().Wire.Version,
		Leases: ses.leases, RoutingEpoch: l.routing.Load(),
		Metadata: l.server.reachable(),
	}
	l.server.sendRevocations(reply, revoked)
	err = l.Store.View(func(r state.Reader, _ uint64) (err error) {
		reply.Quotas, err = l.Machine.HasQuotas(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	if token {
		if reply.Token, reply.TokenExpires, err = l.tokens.sign(id, ses, l.Clock.Now()); err != nil {
			return nil, err
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Session{Session: reply}}, nil
}

// closeSession ends a session at its client's wish; one that has ended already
// is closed.
func (l *leader) closeSession(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	return l.Propose(ctx, c.Caller, c.Req)
}

// endOverdue expires the sessions that were not renewed in time: of very many (a whole job
// was killed) as many as there is time for before the next tick.
func (l *leader) endOverdue(ctx context.Context, now time.Time) error {
	overdue := l.sessions.overdue(now)
	for range maxExpireCommands {
		most := maxExpire
		if l.lease.Exclusives() > 0 {
			most = state.MaxExpireHolding
		}
		ids := overdue[:min(most, len(overdue))]
		if overdue = overdue[len(ids):]; len(ids) == 0 {
			return nil
		}
		_, err := l.Command(ctx, &statepb.Command{Op: &statepb.Command_ExpireSessions{
			ExpireSessions: &statepb.ExpireSessions{Sessions: ids}}})
		if err != nil {
			return err
		}
		l.sessions.remove(ids)
		l.Metrics.Expired.Add(float64(len(ids)))
		l.Log.Info("sessions were not renewed and have ended", "sessions", len(ids), "left", len(overdue))
		if l.Clock.Since(now) > lead.TickEvery/2 {
			return nil
		}
	}
	return nil
}

const (
	// maxExpire bounds the sessions that one command ends, and maxExpireCommands the
	// commands of one tick.
	maxExpire         = 64
	maxExpireCommands = 64
)

// gateways are the certificates of gateways that have sessions, each once, the one that
// expires first.
func (s *sessions) gateways() map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]time.Time{}
	for _, ses := range s.byID {
		p := ses.peer.Load()
		if p == nil || p.Role != transport.RoleGateway || p.NotAfter.IsZero() || ses.ending {
			continue
		}
		if have, ok := out[p.Node]; !ok || p.NotAfter.Before(have) {
			out[p.Node] = p.NotAfter
		}
	}
	return out
}
