package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// sessionAnswers is the version of the record of a session that keeps one answer in
// its record: most clients wait for each answer before they ask again, or nearly, and
// a key of its own for each is made by one command and taken away by the next.
//
//	version | length of what follows it, up to the answer (32 bits) | ... | answer, with its length
const sessionAnswers = 3

// sessionHead is what comes before the fields of such a record.
const sessionHead = 1 + 4

// answers is what a session knows of the answers that are kept for it.
type answers struct {
	inside bool   // the record keeps one; else each has a key of its own
	number uint64 // of the request whose answer is in the record, 0 for none
	answer []byte // an encoded MetaResponse
	apart  uint64 // how many have keys, where the record keeps one
}

// encode ends the record b of a session, whose fields are all in it, with the answer.
func (a *answers) encode(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-sessionHead))
	return putBytes(b, a.answer)
}

// decodeAnswer takes the answer off the end of the record, past the next n bytes.
func (d *dec) decodeAnswer(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.fail(errShort)
		return nil
	}
	end := dec{b: d.b[n:]}
	answer := end.bytes()
	if err := end.end("answer"); err != nil {
		d.fail(err)
		return nil
	}
	d.b = d.b[:n]
	return answer
}

// withoutAnswer returns the record of a session without the answer that it keeps.
func withoutAnswer(record []byte) []byte {
	if len(record) < sessionHead || record[0] != sessionAnswers {
		return record
	}
	n := sessionHead + int(binary.LittleEndian.Uint32(record[1:]))
	return record[:min(n, len(record))]
}

// answered returns the answer that is kept of a session's request, encoded.
func (v *view) answered(s *session, number uint64) ([]byte, bool, error) {
	switch {
	case s.inside && s.number == number:
		return s.answer, true, nil
	case s.inside && s.apart == 0:
		return nil, false, nil
	}
	return v.r.Get(v.k.answer(s.id, number))
}

// Answered reports whether a session's request of that number has an answer that
// is kept.
func (m *Machine) Answered(r Reader, id moraine.SessionID, number uint64) (bool, error) {
	v := view{r: r, k: m.k}
	s, err := v.session(id)
	if err != nil {
		if isAnswer(err) {
			return false, nil // its answers went with it
		}
		return false, err
	}
	_, ok, err := v.answered(s, number)
	return ok, err
}

// keep remembers the answer and forgets those that the client has.
func (t *tx) keep(s *session, oldAcked uint64, req *wire.MetaRequest, resp *wire.MetaResponse) error {
	if _, alive, err := t.Get(t.k.session(s.id)); err != nil || !alive {
		return err // the request closed it
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(resp)
	if err != nil {
		return &moraine.Error{Op: "encode answer", Kind: moraine.Internal, Err: err}
	}
	acked := min(req.GetAckedBelow(), req.GetNumber())
	if acked > oldAcked {
		if err := t.forget(s, oldAcked, acked); err != nil {
			return err
		}
	}
	// admit saw that there is none, and the command wrote none.
	switch {
	case s.inside && s.number == 0:
		s.number, s.answer = req.GetNumber(), b
	case s.inside:
		s.apart++
		fallthrough
	default:
		t.insert(t.k.answer(s.id, req.GetNumber()), b)
	}
	if s.inside || acked > oldAcked {
		t.put(t.k.session(s.id), s.encode())
	}
	return t.abandonNumbers(s, req)
}

// abandonNumbers answers the numbers that the caller of a request has given up, where they have
// no answer: what arrives under one of them later gets that one, and is not applied. The
// caller may have had a later change acknowledged, which an older one must not undo.
func (t *tx) abandonNumbers(s *session, req *wire.MetaRequest) error {
	given := req.GetGivenUp()
	var b []byte
	for _, n := range given[:min(len(given), AnswerWindow)] {
		if n == 0 || n < s.ackedBelow || n >= max(s.ackedBelow, 1)+AnswerWindow {
			continue
		}
		if _, ok, err := t.answered(s, n); err != nil || ok {
			if err != nil {
				return err
			}
			continue
		}
		if b == nil {
			var err error
			resp := refuse(fail(moraine.Stale, "session", s.id.String(), "the caller gave the request up before it arrived"))
			if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(resp); err != nil {
				return &moraine.Error{Op: "encode answer", Kind: moraine.Internal, Err: err}
			}
		}
		t.insert(t.k.answer(s.id, n), b)
		if s.inside {
			s.apart++
			t.put(t.k.session(s.id), s.encode())
		}
	}
	return nil
}

// forget takes away the answers of the numbers from oldAcked on and below acked.
func (t *tx) forget(s *session, oldAcked, acked uint64) error {
	s.ackedBelow = acked
	if s.inside && s.number < acked {
		s.number, s.answer = 0, nil
	}
	for n := max(oldAcked, 1); n < min(acked, oldAcked+AnswerWindow+1); n++ {
		if s.inside && s.apart == 0 {
			return nil
		}
		key := t.k.answer(s.id, n)
		_, ok, err := t.Get(key)
		if err != nil {
			return err
		}
		if ok {
			t.del(key)
			if s.inside {
				s.apart--
			}
		}
	}
	return nil
}

func (m *Machine) dropAnswers(t *tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.keysUnder(t.k.answers(id), budget)
	for _, key := range keys {
		t.del(key)
	}
	return len(keys), err
}
