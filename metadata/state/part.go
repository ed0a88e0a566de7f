package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// MaxPartFiles is the most files of one rank's part.
const MaxPartFiles = 64

// partRecord returns a rank's part; nil where the rank has not begun.
func (v *view) partRecord(id record.StepID, rank uint32) (*record.Part, error) {
	b, ok, err := v.r.Get(v.k.part(id, rank))
	if err != nil || !ok {
		return nil, err
	}
	p := &record.Part{}
	return p, p.Decode(b)
}

// partFromWire checks what a rank seals.
func partFromWire(op *wire.SealPart, session moraine.SessionID) (*record.Part, error) {
	id := stepFromWire(op.GetKey())
	bad := func(format string, args ...any) (*record.Part, error) {
		return nil, fail(moraine.InvalidArgument, "seal part", id.String(), format, args...)
	}
	if len(op.GetDigest()) != sha256.Size {
		return bad("a digest has %d bytes, not %d", sha256.Size, len(op.GetDigest()))
	}
	if len(op.GetFiles()) > MaxPartFiles {
		return bad("%d files, %d at most", len(op.GetFiles()), MaxPartFiles)
	}
	p := &record.Part{Session: session, Sealed: true, Digest: [sha256.Size]byte(op.GetDigest())}
	for _, f := range op.GetFiles() {
		if err := checkName("seal part", f.GetName()); err != nil {
			return nil, err
		}
		p.Files = append(p.Files, record.PartFile{Inode: moraine.InodeID(f.GetInode()), Name: f.GetName(), Crc: f.GetCrc(), Size: f.GetSize()})
	}
	return p, nil
}

// sealPart completes a rank's part: its files get their names in the step's
// directory. The last one seals the step, and makes the job that checks it. The
// same seal again is answered as it was; another one is a Conflict.
func (m *Machine) sealPart(t *tx, op *wire.SealPart) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := t.presentRun("seal part", id); err != nil {
		return nil, err
	}
	p, err := partFromWire(op, t.session.Id)
	if err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fail(moraine.NotFound, "seal part", id.String(), "the step was not begun")
	}
	if s.State == record.StepAborted {
		return nil, fail(moraine.Aborted, "seal part", id.String(), "%s", s.Reason)
	}
	have, err := t.partRecord(id, op.GetRank())
	if err != nil {
		return nil, err
	}
	switch {
	case have == nil:
		return nil, fail(moraine.InvalidArgument, "seal part", id.String(), "rank %d has not begun", op.GetRank())
	case have.Sealed && have.Equal(p):
		return stepReply(s), nil
	case have.Sealed:
		return nil, fail(moraine.Conflict, "seal part", id.String(), "rank %d has sealed another part", op.GetRank())
	case have.Session != t.session.Id:
		return nil, fail(moraine.Fenced, "seal part", id.String(), "rank %d has begun again elsewhere", op.GetRank())
	case s.State != record.StepOpen:
		return nil, &moraine.Error{Op: "seal part", Ref: id.String(), Kind: moraine.Corrupt}
	}
	if err := m.takeFiles(t, s, p.Files); err != nil {
		return nil, err
	}
	if protects := op.GetProtects(); s.Sealed == 0 || protects < s.Protects {
		s.Protects = protects
	}
	s.Sealed++
	s.LastSeal = t.clusterTime()
	t.del(t.k.sessionStep(t.session.Id, id, op.GetRank()))
	t.put(t.k.part(id, op.GetRank()), p.Encode())
	if err := m.countSeal(t, s, op.GetRank()); err != nil {
		return nil, err
	}
	if s.Sealed == s.World {
		if err := m.sealStep(t, s); err != nil {
			return nil, err
		}
	}
	t.putStep(s)
	t.stepChanged(id)
	return stepReply(s), nil
}

// takeFiles links unlinked files of the session into the step's directory, and
// adds up what they are.
func (m *Machine) takeFiles(t *tx, s *record.Step, files []record.PartFile) error {
	dir, err := t.inode(s.Dir)
	if err != nil {
		return damaged(err)
	}
	t.open(dir)
	for _, f := range files {
		i, err := t.inode(f.Inode)
		if err != nil {
			return err
		}
		ref := s.Id.String() + "/" + f.Name
		switch {
		case i.Typ != record.TypeFile || i.Owner == 0 || i.Owner != t.session.Id:
			return fail(moraine.InvalidArgument, "seal part", ref, "inode %s is no unlinked file of the session", i.Id)
		case uint64(i.Size) != f.Size:
			return fail(moraine.InvalidArgument, "seal part", ref, "the file has %d bytes, not %d", i.Size, f.Size)
		case i.Tenant != dir.Tenant:
			return fail(moraine.CrossTenant, "seal part", ref, "")
		}
		if i.Lost() {
			return fail(moraine.Lost, "seal part", ref, "bytes of the file were in memory alone, and are gone")
		}
		_, taken, err := t.lookup(dir.Id, f.Name)
		if err != nil {
			return err
		}
		if taken {
			return fail(moraine.Exists, "seal part", ref, "")
		}
		m.adopt(t, i)
		m.link(t, dir, f.Name, i)
		i.Ctime, i.Sealed = t.now, true
		t.putInode(i)
		s.Bytes += f.Size
		s.Degraded += i.Degraded
		if i.Content != 0 && (s.Level == 0 || i.Level < s.Level) {
			s.Level = i.Level
		}
	}
	return nil
}

// sealStep seals the step: all its ranks have, and a worker is to check it. The
// caller writes it.
func (m *Machine) sealStep(t *tx, s *record.Step) error {
	h := sha256.New()
	for n := range s.Blocks() {
		b, err := t.stepBlock(s, n)
		if err != nil {
			return err
		}
		h.Write(b.Digest)
	}
	s.State, s.Digest = record.StepSealed, h.Sum(nil)
	t.del(t.k.openStep(s.Id))
	var err error
	s.Job, err = m.addJob(t, jobSpec{
		kind: wire.JobKind_JOB_KIND_COMMIT_STEP, subject: s.Id.String(), step: s.Id, total: uint64(s.World),
	})
	return err
}

// readParts lists the sealed parts of a checkpoint, by rank.
func (v *view) readParts(sc scope, op *wire.ListParts) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := v.runInScope(sc, "list parts", id.Run); err != nil {
		return nil, err
	}
	reply := &wire.PartsReply{}
	limit := pageLimit(op.GetLimit())
	var bad error
	err := v.r.Scan(v.k.part(id, op.GetAfter()), prefixEnd(v.k.parts(id)), func(key, value []byte) bool {
		var p record.Part
		if bad = p.Decode(value); bad != nil {
			return false
		}
		if !p.Sealed {
			return true
		}
		if reply.More = len(reply.Parts) == limit; reply.More {
			return false
		}
		reply.Parts = append(reply.Parts, p.ToWire(binary.BigEndian.Uint32(key[len(key)-4:])))
		return true
	})
	if err == nil {
		err = bad
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Parts{Parts: reply}}, err
}

// sessionGone does what the end of a session means to checkpoints: a step that
// waits for a rank of it will never be complete, and is aborted; and the
// session leaves the attempts that it joined.
func (m *Machine) sessionGone(t *tx, id moraine.SessionID, budget int) (int, error) {
	const cost = 8 // records that one rank may take, or a step of it
	most := (budget + cost - 1) / cost
	keys, err := t.keysUnder(t.k.sessionSteps(id), most)
	if err != nil {
		return 0, err
	}
	spent := cost * len(keys)
	more := len(keys) == most
	for len(keys) > 0 {
		group := keys[0][:len(keys[0])-4]
		n := 1
		for n < len(keys) && bytes.Equal(keys[n][:len(keys[n])-4], group) {
			n++
		}
		if err := m.ranksGone(t, id, stepOfKey(group), keys[:n]); err != nil {
			return 0, err
		}
		keys = keys[n:]
	}
	if more || spent >= budget {
		return budget, nil
	}
	left, err := m.leaveAttempts(t, id, budget-spent)
	return spent + left, err
}

// ranksGone aborts a step that waits for ranks of an ended session.
func (m *Machine) ranksGone(t *tx, id moraine.SessionID, of record.StepID, keys [][]byte) error {
	why := ""
	for _, key := range keys {
		t.del(key)
		rank := binary.BigEndian.Uint32(key[len(key)-4:])
		p, err := t.partRecord(of, rank)
		if err != nil {
			return err
		}
		if p == nil || p.Sealed || p.Session != id {
			continue
		}
		if why == "" {
			why = "rank " + record.Utoa(uint64(rank))
		} else {
			why += ", " + record.Utoa(uint64(rank))
		}
	}
	s, err := t.stepRecord(of)
	if err != nil || s == nil || s.State != record.StepOpen || why == "" {
		return err
	}
	return m.abortStepRecord(t, s, "the session of "+record.Clip(why, 150)+" ended before it sealed")
}
