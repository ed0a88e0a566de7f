package state

import (
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport/wire"
)

// Request applies a client's mutation. With a session, a number that was
// answered before gets the answer that it got, and every new answer, of a
// failure too, is kept until the client says that it has it.
func Request(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if err := session.Routed(t, req); err != nil {
		if kvtx.IsAnswer(err) {
			return kvtx.Refuse(err), nil
		}
		return nil, err
	}
	if req.GetSession() == 0 {
		return Guard(t, func() (*wire.MetaResponse, error) {
			if err := names.EnterWithout(t, req); err != nil {
				return nil, err
			}
			return MutateOf(t, req)
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
	resp, err := Guard(t, func() (*wire.MetaResponse, error) {
		if err := names.MayMutate(t.Scope, req); err != nil {
			return nil, err
		}
		return MutateOf(t, req)
	})
	if err != nil {
		return nil, err
	}
	if t.Met.Directory != 0 {
		return resp, nil
	}
	return resp, session.Keep(t, s, oldAcked, req, resp)
}

// MutateOf carries out a request in the command's scope.
func MutateOf(t *kvtx.Tx, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := Mutate(t, req)
	if err == nil {
		err = names.Confine(&t.View, t.Scope, resp)
	}
	return resp, err
}
