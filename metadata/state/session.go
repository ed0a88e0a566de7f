package state

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// AnswerWindow is how many numbers past the last acknowledged one a session
// may have under way: the answers of all of them are kept.
const AnswerWindow = 1024

// MaxExpire is the most sessions that one command ends.
const MaxExpire = 128

// MaxExpireHolding is how many sessions one command ends whatever exclusive leases they
// have: with more it could write more records than a command may.
const MaxExpireHolding = 24

// cleanBudget is how many records one command takes away when it cleans up
// after a session.
const cleanBudget = 512

// session returns a live session; SessionExpired where there is none.
func (v *view) session(id moraine.SessionID) (*record.Session, error) {
	b, ok, err := v.r.Get(v.k.session(id))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, noSession(id)
	}
	s := &record.Session{Id: id}
	return s, s.Decode(b)
}

// request applies a client's mutation. With a session, a number that was
// answered before gets the answer that it got, and every new answer, of a
// failure too, is kept until the client says that it has it.
func (t *tx) request(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if err := t.routed(req); err != nil {
		if isAnswer(err) {
			return refuse(err), nil
		}
		return nil, err
	}
	if req.GetSession() == 0 {
		return t.guard(func() (*wire.MetaResponse, error) {
			if err := t.enterWithout(req); err != nil {
				return nil, err
			}
			return t.mutate(req)
		})
	}
	s, kept, err := t.admit(req)
	if err != nil {
		if isAnswer(err) {
			return refuse(err), nil
		}
		return nil, err
	}
	if kept != nil {
		t.repeated = true
		return kept, t.abandonNumbers(s, req)
	}
	oldAcked := s.AckedBelow
	t.session = s
	t.scope = GrantedScope(s)
	resp, err := t.guard(func() (*wire.MetaResponse, error) {
		if err := t.scope.mayMutate(req); err != nil {
			return nil, err
		}
		return t.mutate(req)
	})
	if err != nil {
		return nil, err
	}
	if t.met.Directory != 0 {
		return resp, nil
	}
	return resp, t.keep(s, oldAcked, req, resp)
}

// mutate carries out a request in the command's scope.
func (t *tx) mutate(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := t.m.mutate(t, req)
	if err == nil {
		err = t.confine(t.scope, resp)
	}
	return resp, err
}

// refuse is an answer that is not kept.
func refuse(err error) *wire.MetaResponse { return &wire.MetaResponse{Error: WireError(err)} }

// admit finds the session of a request and the answer that its number got
// before, if any. It fails where the request must not be applied.
func (t *tx) admit(req *wire.MetaRequest) (*record.Session, *wire.MetaResponse, error) {
	s, err := t.view.session(moraine.SessionID(req.GetSession()))
	if err != nil {
		return nil, nil, err
	}
	if !s.Of(t.caller) {
		return nil, nil, noSession(s.Id)
	}
	n := req.GetNumber()
	switch {
	case n == 0:
		return nil, nil, fail(moraine.InvalidArgument, "session", s.Id.String(), "a mutation needs a request number")
	case n < s.AckedBelow:
		return nil, nil, fail(moraine.Stale, "session", s.Id.String(), "number %d was acknowledged and is over", n)
	}
	b, ok, err := t.answered(s, n)
	if err != nil {
		return nil, nil, err
	}
	if ok {
		resp := &wire.MetaResponse{}
		if err := proto.Unmarshal(b, resp); err != nil {
			return nil, nil, &moraine.Error{Op: "decode answer", Ref: s.Id.String(), Kind: moraine.Corrupt, Err: err}
		}
		return s, resp, nil
	}
	acked := max(s.AckedBelow, min(req.GetAckedBelow(), n))
	if n >= max(acked, 1)+AnswerWindow {
		return nil, nil, fail(moraine.Busy, "session", s.Id.String(), "number %d is past the window of %d answers", n, AnswerWindow)
	}
	return s, nil, nil
}

// openSession makes a session. A nonce that made one before finds it again, so
// that a repeated OpenSession is harmless.
func (m *Machine) openSession(t *tx, op *wire.OpenSession) (*wire.MetaResponse, error) {
	if len(op.GetNonce()) != 16 {
		return nil, fail(moraine.InvalidArgument, "open session", "", "want a nonce of 16 bytes")
	}
	if op.GetNode() != t.caller.GetNode() {
		return nil, fail(moraine.PermissionDenied, "open session", op.GetNode(), "the caller is %q", t.caller.GetNode())
	}
	if !covers(t.caller.GetScope(), op.GetScope()) {
		return nil, fail(moraine.PermissionDenied, "open session", op.GetScope(), "the certificate is for %q", t.caller.GetScope())
	}
	b, ok, err := t.Get(t.k.sessionNonce(op.GetNonce()))
	if err != nil {
		return nil, err
	}
	if ok {
		return m.reopen(t, op, b)
	}
	root, err := t.resolveScope(op.GetScope())
	if err != nil {
		return nil, err
	}
	id, err := t.drawnSession(op.GetDrawn())
	if err != nil {
		return nil, err
	}
	t.next(record.CSession)
	s := &record.Session{Id: id, Node: op.GetNode(), Principal: record.PrincipalOf(t.caller), Role: op.GetRole(), Root: root, Scope: op.GetScope(),
		ReadOnly: op.GetReadOnly() || t.caller.GetReadOnly(), Squash: op.GetSquash() || t.caller.GetSquash(), Nonce: slices.Clone(op.GetNonce()), Opened: t.clusterTime(),
		AckedBelow: 1}
	speaks, err := t.speaks(levelCaches)
	if err != nil {
		return nil, err
	}
	s.Leases = speaks && op.GetLeases()
	if s.Inside, err = t.speaks(LevelAnswers); err != nil {
		return nil, err
	}
	s.Inside = s.Inside && op.GetKeepsAnswer()
	t.insert(t.k.session(s.Id), s.Encode())
	t.put(t.k.sessionNonce(s.Nonce), record.EncodeNonce(s.Id))
	t.count[record.CSessions]++
	return t.sessionReply(s)
}

// HasNonce reports whether a live session was opened with a nonce.
func (m *Machine) HasNonce(r Reader, nonce []byte) (known bool, err error) {
	_, known, err = r.Get(m.k.sessionNonce(nonce))
	return known, err
}

// drawnSession returns the session number of a random part that the leader drew;
// Exists where a session that is live, or not cleaned up yet, has it.
func (t *tx) drawnSession(drawn uint64) (moraine.SessionID, error) {
	if drawn == 0 || drawn>>40 != 0 {
		return 0, fail(moraine.InvalidArgument, "open session", "", "the random part of its number is %x; want 1 to 40 bits", drawn)
	}
	c, err := t.identity()
	if err != nil {
		return 0, err
	}
	id := moraine.SessionID(moraine.MakeID(t.k.p, c.Incarnation, drawn))
	for _, key := range [][]byte{t.k.session(id), t.k.endedSession(id)} {
		if _, taken, err := t.Get(key); err != nil || taken {
			if err == nil {
				err = fail(moraine.Exists, "open session", id.String(), "draw another number")
			}
			return 0, err
		}
	}
	return id, nil
}

// noSession is the error for a session that does not exist. A caller whose certificate did
// not open a session gets it, too: it does not learn which sessions there are.
func noSession(id moraine.SessionID) error {
	return fail(moraine.SessionExpired, "session", id.String(), "open a new one")
}

func (m *Machine) reopen(t *tx, op *wire.OpenSession, b []byte) (*wire.MetaResponse, error) {
	id, err := record.DecodeNonce(b)
	if err != nil {
		return nil, err
	}
	s, err := t.view.session(id)
	if err != nil {
		return nil, err
	}
	if !s.Of(t.caller) {
		return nil, fail(moraine.PermissionDenied, "open session", op.GetNode(), "the nonce is another's")
	}
	return t.sessionReply(s)
}

// sessionReply holds what the state knows; the service adds term and token.
func (t *tx) sessionReply(s *record.Session) (*wire.MetaResponse, error) {
	c, err := t.cluster()
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Session{Session: &wire.SessionReply{
		Session: uint64(s.Id), Root: uint64(s.Root), Cluster: c.Uuid[:], Incarnation: uint64(c.Incarnation),
	}}}, nil
}

func (m *Machine) closeSession(t *tx) (*wire.MetaResponse, error) {
	return done(), m.endSession(t, t.session)
}

// expireSessions ends the sessions that the leader found silent for a term.
// Those that are gone already are passed over.
func (m *Machine) expireSessions(t *tx, op *statepb.ExpireSessions) (*wire.MetaResponse, error) {
	if len(op.GetSessions()) > MaxExpire {
		return nil, fail(moraine.TooLarge, "expire sessions", "", "%d sessions, %d at most", len(op.GetSessions()), MaxExpire)
	}
	for _, id := range op.GetSessions() {
		s, err := t.view.session(moraine.SessionID(id))
		if moraineKind(err) == moraine.SessionExpired {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := m.endSession(t, s); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// endSession takes the record away, so that every later mutation of the
// session fails, and cleans up what it owned: at once as far as one command
// goes, and the rest piece by piece with each Tick.
func (m *Machine) endSession(t *tx, s *record.Session) error {
	t.del(t.k.session(s.Id))
	t.del(t.k.sessionNonce(s.Nonce))
	t.count[record.CSessions]--
	if err := t.endSessionHolds(s.Id); err != nil {
		return err
	}
	t.events.SessionsEnded = append(t.events.SessionsEnded, s.Id)
	t.put(t.k.endedSession(s.Id), []byte{record.SessionVersion})
	t.count[record.CEndedSessions]++
	return m.cleanSession(t, s.Id, cleanBudget-len(t.order))
}

// cleanSession takes away about budget records of an ended session: its grants
// end, its unlinked files die, its answers are forgotten. When nothing is left
// its mark goes too.
func (m *Machine) cleanSession(t *tx, id moraine.SessionID, budget int) error {
	for _, clean := range []func(*tx, moraine.SessionID, int) (int, error){
		m.endSessionGrants, m.sessionGone, m.dropSessionInodes, m.dropStepLeases, m.dropAnswers,
	} {
		if budget <= 0 {
			return nil
		}
		n, err := clean(t, id, budget)
		if err != nil {
			return err
		}
		budget -= n
	}
	if budget <= 0 {
		return nil
	}
	t.del(t.k.endedSession(id))
	t.count[record.CEndedSessions]--
	return nil
}

// keysUnder returns copies of at most limit keys that begin with prefix.
func (v *view) keysUnder(prefix []byte, limit int) ([][]byte, error) {
	var keys [][]byte
	if limit <= 0 {
		return nil, nil
	}
	err := v.r.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		keys = append(keys, slices.Clone(key))
		return len(keys) < limit
	})
	return keys, err
}
