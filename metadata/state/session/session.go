package session

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/delegation"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/locks"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// AnswerWindow is how many numbers after the last acknowledged one a session may have in progress.
// The state keeps the answers of all of them.
const AnswerWindow = 1024

// maxExpire is the largest number of sessions that one command ends.
const maxExpire = 128

// CleanBudget is the number of records that one command removes when it cleans up after a session.
const CleanBudget = 512

// Admit finds the session of a request and the kept answer of its number, if any. It fails if the
// request must not be applied.
func Admit(t *kvtx.Tx, req *wire.MetaRequest) (*record.Session, *wire.MetaResponse, error) {
	s, err := t.View.Session(moraine.SessionID(req.GetSession()))
	if err != nil {
		return nil, nil, err
	}
	if !s.Of(t.Caller) {
		return nil, nil, kvtx.NoSession(s.Id)
	}
	n := req.GetNumber()
	switch {
	case n == 0:
		return nil, nil, kvtx.Fail(moraine.InvalidArgument, "session", s.Id.String(), "a mutation needs a request number")
	case n < s.AckedBelow:
		return nil, nil, kvtx.Fail(moraine.Stale, "session", s.Id.String(), "the client has already acknowledged the answer to request %d", n)
	}
	b, ok, err := answered(&t.View, s, n)
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
		return nil, nil, kvtx.Fail(moraine.Busy, "session", s.Id.String(), "request %d is beyond the window of %d unacknowledged answers: acknowledge earlier answers first", n, AnswerWindow)
	}
	return s, nil, nil
}

// OpenSession opens a session. A nonce that opened a session earlier finds that session, so that a
// client may retry OpenSession.
func OpenSession(t *kvtx.Tx, op *wire.OpenSession) (*wire.MetaResponse, error) {
	if len(op.GetNonce()) != 16 {
		return nil, kvtx.Fail(moraine.InvalidArgument, "open session", "", "the nonce has %d bytes, but must have 16", len(op.GetNonce()))
	}
	if op.GetNode() != t.Caller.GetNode() {
		return nil, kvtx.Fail(moraine.PermissionDenied, "open session", op.GetNode(), "the certificate is of node %q", t.Caller.GetNode())
	}
	if !tree.Covers(t.Caller.GetScope(), op.GetScope()) {
		return nil, kvtx.Fail(moraine.PermissionDenied, "open session", op.GetScope(), "the certificate confines its holder to %q", t.Caller.GetScope())
	}
	b, ok, err := t.Get(t.K.SessionNonce(op.GetNonce()))
	if err != nil {
		return nil, err
	}
	if ok {
		return reopen(t, op, b)
	}
	root, err := tree.ResolveScope(&t.View, op.GetScope())
	if err != nil {
		return nil, err
	}
	id, err := drawnSession(t, op.GetDrawn())
	if err != nil {
		return nil, err
	}
	t.Next(record.CSession)
	s := &record.Session{Id: id, Node: op.GetNode(), Principal: record.PrincipalOf(t.Caller), Role: op.GetRole(), Root: root, Scope: op.GetScope(),
		ReadOnly: op.GetReadOnly() || t.Caller.GetReadOnly(), Squash: op.GetSquash() || t.Caller.GetSquash(), Nonce: slices.Clone(op.GetNonce()), Opened: t.ClusterTime(),
		AckedBelow: 1, Leases: op.GetLeases(), Opens: op.GetOpens()}
	t.Insert(t.K.Session(s.Id), s.Encode())
	t.Put(t.K.SessionNonce(s.Nonce), record.EncodeNonce(s.Id))
	t.Count[record.CSessions]++
	if s.Opens {
		t.Count[record.COpeners]++
	}
	return sessionReply(t, s)
}

// HasNonce reports whether a live session was opened with the nonce.
func HasNonce(r *kvtx.View, nonce []byte) (known bool, err error) {
	_, known, err = r.Get(r.K.SessionNonce(nonce))
	return known, err
}

// drawnSession returns the session number for a random part that the leader drew. It fails with
// Exists if a session that is live, or not cleaned up yet, has that number.
func drawnSession(t *kvtx.Tx, drawn uint64) (moraine.SessionID, error) {
	if drawn == 0 || drawn>>40 != 0 {
		return 0, kvtx.Fail(moraine.InvalidArgument, "open session", "", "the random part of the session number is %x, but must be 1 to 40 bits", drawn)
	}
	c, err := t.Identity()
	if err != nil {
		return 0, err
	}
	id := moraine.SessionID(moraine.MakeID(t.K.P, c.Incarnation, drawn))
	for _, key := range [][]byte{t.K.Session(id), t.K.EndedSession(id)} {
		if _, taken, err := t.Get(key); err != nil || taken {
			if err == nil {
				err = kvtx.Fail(moraine.Exists, "open session", id.String(), "the session number is in use: draw another one")
			}
			return 0, err
		}
	}
	return id, nil
}

// reopen answers an OpenSession whose nonce opened a session earlier; b is the nonce's row.
func reopen(t *kvtx.Tx, op *wire.OpenSession, b []byte) (*wire.MetaResponse, error) {
	id, err := record.DecodeNonce(b)
	if err != nil {
		return nil, err
	}
	s, err := t.View.Session(id)
	if err != nil {
		return nil, err
	}
	if !s.Of(t.Caller) {
		return nil, kvtx.Fail(moraine.PermissionDenied, "open session", op.GetNode(), "another certificate opened the session of this nonce")
	}
	return sessionReply(t, s)
}

// sessionReply returns the state's part of the answer. The service adds the term and the token.
func sessionReply(t *kvtx.Tx, s *record.Session) (*wire.MetaResponse, error) {
	c, err := t.Cluster()
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Session{Session: &wire.SessionReply{
		Session: uint64(s.Id), Root: uint64(s.Root), Cluster: c.Uuid[:], Incarnation: uint64(c.Incarnation),
	}}}, nil
}

// CloseSession ends the session of the request.
func CloseSession(t *kvtx.Tx) (*wire.MetaResponse, error) {
	return kvtx.Done(), endSession(t, t.Session)
}

// ExpireSessions ends sessions that the leader did not receive anything from for a term. It skips
// sessions that are already gone.
func ExpireSessions(t *kvtx.Tx, op *statepb.ExpireSessions) (*wire.MetaResponse, error) {
	if len(op.GetSessions()) > maxExpire {
		return nil, kvtx.Fail(moraine.TooLarge, "expire sessions", "", "%d sessions, %d at most", len(op.GetSessions()), maxExpire)
	}
	for _, id := range op.GetSessions() {
		s, err := t.View.Session(moraine.SessionID(id))
		if kvtx.MoraineKind(err) == moraine.SessionExpired {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := endSession(t, s); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// endSession deletes the record, so that every later mutation of the session fails, and removes the
// session's belongings. One command removes what it may, and each Tick removes more.
func endSession(t *kvtx.Tx, s *record.Session) error {
	t.Del(t.K.Session(s.Id))
	t.Del(t.K.SessionNonce(s.Nonce))
	t.Count[record.CSessions]--
	if s.Opens {
		t.Count[record.COpeners]--
	}
	t.Events.SessionsEnded = append(t.Events.SessionsEnded, s.Id)
	t.Put(t.K.EndedSession(s.Id), []byte{record.SessionVersion})
	t.Count[record.CEndedSessions]++
	return CleanSession(t, s.Id, CleanBudget-len(t.Order))
}

// CleanSession removes about budget records of an ended session: it ends grants, removes unlinked
// files and deletes answers. When nothing is left it removes the session's mark too.
func CleanSession(t *kvtx.Tx, id moraine.SessionID, budget int) error {
	for _, clean := range []func(*kvtx.Tx, moraine.SessionID, int) (int, error){
		fleet.EndSessionGrants, ckpt.SessionGone, names.DropSessionInodes, ckpt.DropStepLeases, locks.DropSession, delegation.DropSession, dropAnswers,
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
	t.Del(t.K.EndedSession(id))
	t.Count[record.CEndedSessions]--
	return nil
}

// Sessions calls fn with every live session, in order of number, until fn fails.
func Sessions(r *kvtx.View, fn func(*record.Session) error) error {
	return r.EachIn(r.K.Table(record.TabSession), func(key, value []byte) (bool, error) {
		s := &record.Session{Id: moraine.SessionID(record.LastU64(key))}
		if err := s.Decode(value); err != nil {
			return false, err
		}
		return true, fn(s)
	})
}
