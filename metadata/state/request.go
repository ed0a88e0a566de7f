package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// request applies a client's mutation. In a session, an already answered number gets its first
// answer. The state keeps every new answer, also failures, until the client acknowledges it.
func request(t *kvtx.Tx, h handler, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	o := ops.Of(req) // nil: the FutureRequest of an upgrade test
	if waits(t.Caller) {
		t.MayMeet(moraine.SessionID(req.GetSession()))
	}
	if err := session.Routed(t, req); err != nil {
		if kvtx.IsAnswer(err) {
			return kvtx.Refuse(err), nil
		}
		return nil, err
	}
	if req.GetSession() == 0 {
		resp, err := guard(t, func() (*wire.MetaResponse, error) {
			if o != nil && o.Session {
				return nil, kvtx.Fail(moraine.InvalidArgument, "apply", "", "request %T needs a session", req.GetOp())
			}
			if err := names.EnterWithout(t); err != nil {
				return nil, err
			}
			if err := admits(t.Scope, o, req); err != nil {
				return nil, err
			}
			return mutate(t, h, req)
		})
		if err != nil {
			return nil, err
		}
		return unlessMet(t, resp)
	}
	s, kept, err := session.Admit(t, req)
	if err != nil {
		if kvtx.IsAnswer(err) {
			return kvtx.Refuse(err), nil
		}
		return nil, err
	}
	if kept != nil {
		t.Repeated = true
		return kept, session.AbandonNumbers(t, s, req)
	}
	oldAcked := s.AckedBelow
	t.Session = s
	t.Scope = kvtx.GrantedScope(s)
	resp, err := guard(t, func() (*wire.MetaResponse, error) {
		if err := admits(t.Scope, o, req); err != nil {
			return nil, err
		}
		return mutate(t, h, req)
	})
	if err == nil {
		resp, err = unlessMet(t, resp)
	}
	if err != nil || len(t.Met) > 0 {
		return resp, err
	}
	return resp, session.Keep(t, s, oldAcked, req, resp)
}

// admit is session.Admit for a request that must have a session.
func admit(t *kvtx.Tx, req *wire.MetaRequest) (*record.Session, *wire.MetaResponse, error) {
	if err := session.Routed(t, req); err != nil {
		return nil, nil, err
	}
	if req.GetSession() == 0 {
		return nil, nil, kvtx.Fail(moraine.InvalidArgument, "apply", "", "request %T needs a session", req.GetOp())
	}
	return session.Admit(t, req)
}

// waits reports whether a caller's requests wait for delegated directories. Those of servers do not:
// they concern what the state has.
func waits(c *statepb.Caller) bool { return c.GetRole() != kvtx.RoleChunkserver }

// unlessMet returns the answer of a command, or discards the command if it met delegations.
func unlessMet(t *kvtx.Tx, resp *wire.MetaResponse) (*wire.MetaResponse, error) {
	met, err := delegation.Met(&t.View, t.Scope)
	if err != nil || len(met) == 0 {
		return resp, err
	}
	t.Reset()
	t.Met = met
	return kvtx.Refuse(kvtx.Fail(moraine.Busy, "apply", met[0].Dir.String(), "another session has the directory for itself")), nil
}
