package metadata

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	statesession "github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// revokedEvery is how often a server checks its state for changes of the revocation list.
const revokedEvery = time.Second

// Revoked reports whether a peer's certificate is revoked in this server's state. The transport's
// server calls it.
func (s *Server) Revoked(p *transport.Peer) bool { return s.revoked.Load().Has(p) }

// followRevoked copies the revocation list from the state, on leaders and followers, until ctx
// ends.
func (s *Server) followRevoked(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.loadRevoked(); err != nil && moraine.KindOf(err) != moraine.Unavailable {
			s.deps.Log.Error("could not read the revoked certificates", "err", err)
		}
		lead.Sleep(ctx, s.deps.Clock, revokedEvery)
	}
}

func (s *Server) loadRevoked() error {
	var all []*wire.Revocation
	err := s.store.View(func(r kvtx.Reader, _ uint64) (err error) {
		all, err = statesession.Revocations(s.machine.View(r))
		return err
	})
	if err != nil {
		return err
	}
	next := transport.NewRevocations(all)
	if next.Version() != s.revoked.Load().Version() {
		s.revoked.Store(next)
		s.revokedServers.Store(next.Servers())
		s.deps.Metrics.Revoked.Set(float64(len(all)))
		if s.deps.HeedRevoked != nil {
			s.deps.HeedRevoked(next)
		}
		s.deps.Log.Info("revoked certificates changed", "revoked", len(all))
	}
	return nil
}

// revokeCert adds certificates to the list or removes them. It refuses a change that would lock out
// its caller.
func (l *leader) revokeCert(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	req := proto.CloneOf(c.Req)
	op := req.GetRevokeCert()
	now := l.Clock.Now()
	for _, w := range op.Revocations {
		w.At = now.Unix()
		if w.IssuedUntil == 0 {
			w.IssuedUntil = now.Unix()
		}
	}
	if !op.Undo && transport.NewRevocations(op.Revocations).Has(c.Peer) {
		return nil, &moraine.Error{Ref: c.Caller.Node, Kind: moraine.InvalidArgument,
			Err: errors.New("that is the certificate of this request: revoke it with another administrator's")}
	}
	resp, err := l.Propose(ctx, c.Caller, req)
	if err == nil && resp.GetError() == nil {
		err = l.server.loadRevoked()
	}
	return resp, err
}

// listRevoked lists the revoked certificates.
func (l *leader) listRevoked(ctx context.Context, _ *lead.Call) (*wire.MetaResponse, error) {
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	if err := l.server.loadRevoked(); err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Revoked{Revoked: &wire.RevokedReply{Revocations: l.server.revoked.Load().List()}}}, nil
}

// sendRevocations adds the revoked servers to a reply if the session's client has another version
// of the list.
func (s *Server) sendRevocations(reply *wire.SessionReply, has uint64) {
	revoked := s.revokedServers.Load()
	if reply.RevokedVersion = revoked.Version(); reply.RevokedVersion != has {
		reply.Revoked = revoked.List()
	}
}

// endRevoked makes the sessions of revoked certificates end with the next expiry.
func (l *leader) endRevoked(context.Context, time.Time) error {
	if revoked := l.server.revoked.Load(); revoked.Version() != 0 {
		l.sessions.endOf(revoked)
	}
	return nil
}

// endOf marks the sessions with a revoked certificate for expiry. If a session has not sent this
// leader a request, its certificate is unknown: the leader refuses its requests, and it ends with
// its term.
func (s *sessions) endOf(revoked *transport.Revocations) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.byID {
		if revoked.Has(ses.peer.Load()) {
			ses.ending = true
		}
	}
}

// refuseRevoked refuses a request with a revoked certificate.
func (s *Server) refuseRevoked(p *transport.Peer) error {
	if p == nil || !s.Revoked(p) {
		return nil
	}
	return &moraine.Error{Ref: p.Node, Kind: moraine.Unauthenticated, Err: fmt.Errorf("the certificate of %s %s was revoked", p.Role, p.Node)}
}

// markRevoked marks silent hosts with a revoked certificate.
func (l *leader) markRevoked(t *wire.Topology) *wire.Topology {
	revoked := l.server.revoked.Load()
	if revoked.Version() == 0 {
		return t
	}
	t = proto.CloneOf(t)
	for _, h := range t.Hosts {
		h.CertRevoked = !h.Alive && revoked.HasHost(h.Id)
	}
	return t
}
