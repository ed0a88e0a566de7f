package session

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// answered returns the kept answer of a session's request, encoded.
func answered(v *kvtx.View, s *record.Session, number uint64) ([]byte, bool, error) {
	switch {
	case s.Number == number:
		return s.Answer, true, nil
	case s.Apart == 0:
		return nil, false, nil
	}
	return v.R.Get(v.K.Answer(s.Id, number))
}

// Answered reports whether the state keeps an answer for the session's request of that number.
func Answered(r *kvtx.View, id moraine.SessionID, number uint64) (bool, error) {
	v := kvtx.View{R: r, K: r.K}
	s, err := v.Session(id)
	if err != nil {
		if kvtx.IsAnswer(err) {
			return false, nil // its answers are gone too
		}
		return false, err
	}
	_, ok, err := answered(&v, s, number)
	return ok, err
}

// Keep stores the answer and deletes those that the client has acknowledged.
func Keep(t *kvtx.Tx, s *record.Session, oldAcked uint64, req *wire.MetaRequest, resp *wire.MetaResponse) error {
	if _, alive, err := t.Get(t.K.Session(s.Id)); err != nil || !alive {
		return err // the request closed it
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(resp)
	if err != nil {
		return &moraine.Error{Op: "encode answer", Kind: moraine.Internal, Err: err}
	}
	acked := min(req.GetAckedBelow(), req.GetNumber())
	if acked > oldAcked {
		if err := forget(t, s, oldAcked, acked); err != nil {
			return err
		}
	}
	// Admit found no answer, and the command wrote none.
	if s.Number == 0 {
		s.Number, s.Answer = req.GetNumber(), b
	} else {
		s.Apart++
		t.Insert(t.K.Answer(s.Id, req.GetNumber()), b)
	}
	t.Put(t.K.Session(s.Id), s.Encode())
	return AbandonNumbers(t, s, req)
}

// AbandonNumbers stores an answer for each number that the caller abandoned, if it has none. A
// request that arrives later under such a number gets that answer and is not applied. Otherwise an
// old change could undo a later one that was already acknowledged.
func AbandonNumbers(t *kvtx.Tx, s *record.Session, req *wire.MetaRequest) error {
	given := req.GetAbandoned()
	var b []byte
	for _, n := range given[:min(len(given), AnswerWindow)] {
		if n == 0 || n < s.AckedBelow || n >= max(s.AckedBelow, 1)+AnswerWindow {
			continue
		}
		if _, ok, err := answered(&t.View, s, n); err != nil || ok {
			if err != nil {
				return err
			}
			continue
		}
		if b == nil {
			var err error
			resp := kvtx.Refuse(kvtx.Fail(moraine.Stale, "session", s.Id.String(), "the client abandoned the request before it arrived"))
			if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(resp); err != nil {
				return &moraine.Error{Op: "encode answer", Kind: moraine.Internal, Err: err}
			}
		}
		t.Insert(t.K.Answer(s.Id, n), b)
		s.Apart++
		t.Put(t.K.Session(s.Id), s.Encode())
	}
	return nil
}

// forget deletes the answers of the numbers from oldAcked up to, not including, acked.
func forget(t *kvtx.Tx, s *record.Session, oldAcked, acked uint64) error {
	s.AckedBelow = acked
	if s.Number < acked {
		s.Number, s.Answer = 0, nil
	}
	for n := max(oldAcked, 1); n < min(acked, oldAcked+AnswerWindow+1); n++ {
		if s.Apart == 0 {
			return nil
		}
		key := t.K.Answer(s.Id, n)
		_, ok, err := t.Get(key)
		if err != nil {
			return err
		}
		if ok {
			t.Del(key)
			s.Apart--
		}
	}
	return nil
}

// dropAnswers deletes kept answers of an ended session and returns the number of deleted records,
// about budget at most.
func dropAnswers(t *kvtx.Tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.KeysUnder(t.K.Answers(id), budget)
	for _, key := range keys {
		t.Del(key)
	}
	return len(keys), err
}
