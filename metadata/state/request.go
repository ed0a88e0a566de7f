package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/morainefs/moraine/transport/wire/ops"
)

// request applies a client's mutation. In a session, an already answered number gets its first
// answer. The state keeps every new answer, also failures, until the client acknowledges it.
func request(t *kvtx.Tx, h handler, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	o := ops.Of(req) // nil: the FutureRequest of an upgrade test
	if err := session.Routed(t, req); err != nil {
		if kvtx.IsAnswer(err) {
			return kvtx.Refuse(err), nil
		}
		return nil, err
	}
	if req.GetSession() == 0 {
		return guard(t, func() (*wire.MetaResponse, error) {
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
	if err != nil {
		return nil, err
	}
	return resp, session.Keep(t, s, oldAcked, req, resp)
}
