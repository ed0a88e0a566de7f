package metadata

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// sessionDesk opens, renews and ends sessions while this server leads.
type sessionDesk struct {
	*lead.Term
	cfg      *Config
	rand     io.Reader // source of session numbers
	server   *Server
	sessions *sessions
	log      *commandLog
	tokens   *signer
	routing  *routing
	fleet    *fleet.Fleet
	// strayed: a session may have a root outside its certificate's scope.
	strayed atomic.Bool
}

// admitSession checks a call's session against the leader's memory: the session must be live and
// the caller's own. The state machine decides what the session permits.
func (d *sessionDesk) admitSession(o *op, c *lead.Call) error {
	id := c.Req.Session
	if id == 0 {
		if o.Session {
			return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request needs a session")}
		}
		return nil
	}
	ses, err := d.sessions.live(id)
	if err != nil {
		return err
	}
	if !ses.of(c.Caller) {
		return sessionExpired(id)
	}
	if ses.peer.Load() != c.Peer {
		d.met(ses, c)
	}
	return nil
}

// of reports whether the caller's certificate opened the session.
func (s *session) of(c *statepb.Caller) bool {
	return s.node == c.Node && s.principal == record.PrincipalOf(c)
}

// openSession opens a session. A retried request finds the session that it opened.
func (d *sessionDesk) openSession(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	req, err := openSessionRequest(c)
	if err != nil {
		return nil, err
	}
	release, err := d.admitOpening(c, req.GetOpenSession())
	if err != nil {
		return nil, err
	}
	defer release()
	for range maxDraws {
		if req.GetOpenSession().Drawn, err = d.drawNumber(); err != nil {
			return nil, err
		}
		cmd := &statepb.Command{Caller: c.Caller, Op: &statepb.Command_Request{Request: req}}
		began := d.Clock.Now()
		res, err := d.log.propose(ctx, cmd, func(r *state.Result) { d.opened(r, began) })
		switch failed := res.Response.GetError(); {
		case err != nil:
			return nil, err
		case moraine.Kind(failed.GetKind()) == moraine.Exists && failed != nil:
			continue // another session has the number
		case failed != nil:
			return res.Response, nil
		}
		id := res.Response.GetSession().GetSession()
		if ses, err := d.sessions.live(id); err == nil {
			d.met(ses, c)
		}
		return d.sessionReply(id, true, 0)
	}
	return nil, &moraine.Error{Kind: moraine.Busy, Err: fmt.Errorf("%d random session numbers in a row were in use: try again", maxDraws)}
}

// maxDraws bounds the numbers that one OpenSession draws. With a million sessions, one draw meets
// an existing number with probability one in a million.
const maxDraws = 4

// drawNumber returns the random part of a session's number, which is not 0. The command carries it,
// so that every replica opens the same session.
func (d *sessionDesk) drawNumber() (uint64, error) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(d.rand, b[3:]); err != nil {
			return 0, &moraine.Error{Kind: moraine.Internal, Err: err}
		}
		if n := binary.BigEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

// opened loads a session that an entry opened into memory, even if its client is gone: only
// sessions in memory expire.
func (d *sessionDesk) opened(r *state.Result, began time.Time) {
	reply := r.Response.GetSession()
	if r.Response.GetError() != nil || reply == nil {
		return
	}
	err := d.Store.View(func(r kvtx.Reader, _ uint64) error {
		s, err := d.Machine.View(r).Session(moraine.SessionID(reply.Session))
		if err != nil {
			return err
		}
		ses, err := d.session(r, s, began)
		if err != nil {
			return err
		}
		if _, ses.kept, err = names.Lingers(d.Machine.View(r)); err != nil { // it has nothing open yet
			return err
		}
		d.sessions.add(reply.Session, ses)
		_, err = d.sessions.renew(reply.Session, began) // a retried OpenSession also renews
		return err
	})
	if err != nil && !errors.Is(err, moraine.SessionExpired) {
		d.Log.Error("could not read a session that was opened", "session", moraine.SessionID(reply.Session), "err", err)
	}
}

// session builds a live session for this leader's memory.
func (d *sessionDesk) session(r kvtx.Reader, s *record.Session, renewed time.Time) (*session, error) {
	tenants, all, err := tree.Tenants(d.Machine.View(r), s.Root)
	if err != nil && !errors.Is(err, moraine.NotFound) { // its directory may be gone: it then has no tenant
		return nil, err
	}
	return &session{principal: s.Principal, node: s.Node, root: uint64(s.Root), readOnly: s.ReadOnly, tenants: tenants, all: all, renewed: renewed, leases: s.Leases, opens: s.Opens}, nil
}

// renewSession renews a session for a term, after a round that proves that this server still leads.
func (d *sessionDesk) renewSession(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if c.Req.Session == 0 {
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request names no session")}
	}
	began := d.Clock.Now()
	if err := d.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	if _, err := d.sessions.renew(c.Req.Session, began); err != nil {
		return nil, err
	}
	op := c.Req.GetRenewSession()
	d.sessions.hasKept(c.Req.Session, op.GetLingered())
	return d.sessionReply(c.Req.Session, op.GetWantToken(), op.GetRevokedVersion())
}

// sessionReply returns what a session's client must know, with a token if
// requested. It adds the revoked servers if the client has another version of
// that list.
func (d *sessionDesk) sessionReply(id uint64, token bool, revoked uint64) (*wire.MetaResponse, error) {
	ses, err := d.sessions.live(id)
	if err != nil {
		return nil, err
	}
	reply := &wire.SessionReply{
		Session: id, TermMillis: uint64(d.cfg.SessionTimeout.Milliseconds()), Root: ses.root,
		Cluster: d.Cluster.UUID[:], Incarnation: uint64(d.Cluster.Incarnation), Mark: transport.MarkBytes(d.server.ownIncarnation()), TopologyVersion: d.fleet.Topology.View().Wire.Version,
		Leases: ses.leases, RoutingEpoch: d.routing.epoch.Load(),
		Metadata: d.server.reachable(),
	}
	d.server.sendRevocations(reply, revoked)
	if reply.Lingered, err = d.lingered(id); err != nil {
		return nil, err
	}
	err = d.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		reply.Quotas, err = usage.HasQuotas(d.Machine.View(r))
		return err
	})
	if err != nil {
		return nil, err
	}
	if token {
		if reply.Token, reply.TokenExpires, err = d.tokens.sign(id, ses, d.Clock.Now()); err != nil {
			return nil, err
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Session{Session: reply}}, nil
}

// endOverdue expires the sessions that were not renewed in time. If there are very many, because a
// whole job was killed, it expires as many as it can before the next tick.
func (d *sessionDesk) endOverdue(ctx context.Context, now time.Time) error {
	overdue := d.sessions.overdue(now)
	for range maxExpireCommands {
		ids := overdue[:min(maxExpire, len(overdue))]
		if overdue = overdue[len(ids):]; len(ids) == 0 {
			return nil
		}
		_, err := d.Command(ctx, &statepb.Command{Op: &statepb.Command_ExpireSessions{
			ExpireSessions: &statepb.ExpireSessions{Sessions: ids}}})
		if err != nil {
			return err
		}
		d.sessions.remove(ids)
		d.Metrics.Expired.Add(float64(len(ids)))
		d.Log.Info("sessions were not renewed and have ended", "sessions", len(ids), "left", len(overdue))
		if d.Clock.Since(now) > lead.TickEvery/2 {
			return nil
		}
	}
	return nil
}

const (
	// maxExpire bounds the sessions that one command ends, and maxExpireCommands the commands of
	// one tick.
	maxExpire         = 64
	maxExpireCommands = 64
)

// gateways returns, for each gateway with a session, the earliest time at which one of its
// certificates expires.
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

// loadSessions loads sessions of the state that are not in memory, and gives each a full term.
// Sessions in memory that have ended in the state expire like any other.
func (d *sessionDesk) loadSessions() error {
	now := d.Clock.Now()
	return d.Store.View(func(r kvtx.Reader, _ uint64) error {
		return statesession.Sessions(d.Machine.View(r), func(s *record.Session) error {
			ses, err := d.session(r, s, now)
			if err == nil {
				d.sessions.add(uint64(s.Id), ses)
			}
			return err
		})
	})
}
