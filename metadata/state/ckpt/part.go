package ckpt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// maxPartFiles is the largest number of files in one rank's part.
const maxPartFiles = 64

// PartRecord returns a rank's part; nil if the rank has not begun.
func PartRecord(v *kvtx.View, id record.StepID, rank uint32) (*record.Part, error) {
	b, ok, err := v.R.Get(v.K.Part(id, rank))
	if err != nil || !ok {
		return nil, err
	}
	p := &record.Part{}
	return p, p.Decode(b)
}

// partFromWire checks a rank's seal and returns its part.
func partFromWire(op *wire.SealPart, session moraine.SessionID) (*record.Part, error) {
	id := stepFromWire(op.GetKey())
	bad := func(format string, args ...any) (*record.Part, error) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "seal part", id.String(), format, args...)
	}
	if len(op.GetDigest()) != sha256.Size {
		return bad("the digest must have %d bytes, but has %d", sha256.Size, len(op.GetDigest()))
	}
	if len(op.GetFiles()) > maxPartFiles {
		return bad("the part has %d files, %d at most", len(op.GetFiles()), maxPartFiles)
	}
	p := &record.Part{Session: session, Sealed: true, Digest: [sha256.Size]byte(op.GetDigest())}
	for _, f := range op.GetFiles() {
		if err := names.CheckName("seal part", f.GetName()); err != nil {
			return nil, err
		}
		p.Files = append(p.Files, record.PartFile{Inode: moraine.InodeID(f.GetInode()), Name: f.GetName(), Crc: f.GetCrc(), Size: f.GetSize()})
	}
	return p, nil
}

// SealPart completes a rank's part and names its files in the step's directory. The last seal also
// seals the step. It queues the job that checks the step, or the first seal does: see queueCheck. A retry of the same seal gets the same answer;
// a different seal fails with Conflict.
func SealPart(t *kvtx.Tx, op *wire.SealPart) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	p, err := partFromWire(op, t.Session.Id)
	if err != nil {
		return nil, err
	}
	s, have, err := begunPart(t, "seal part", id, op.GetRank())
	if err != nil {
		return nil, err
	}
	switch {
	case have.Sealed && have.Equal(p):
		return stepReply(s), nil
	case have.Sealed:
		return nil, kvtx.Fail(moraine.Conflict, "seal part", id.String(), "rank %d has already sealed another part", op.GetRank())
	case have.Session != t.Session.Id:
		return nil, begunAgain("seal part", id, op.GetRank())
	case s.State != record.StepOpen:
		return nil, kvtx.Corrupt("seal part", id.String(), "the step is %s, but rank %d has not sealed", s.State, op.GetRank())
	}
	if err := reserve(t, s, have, 0); err != nil {
		return nil, err
	}
	if err := takeFiles(t, s, p.Files); err != nil {
		return nil, err
	}
	if protects := op.GetProtects(); s.Sealed == 0 || protects < s.Protects {
		s.Protects = protects
	}
	p.Claims, p.Begun, p.SealedAt = have.Claims, have.Begun, t.Now
	s.Sealed++
	s.LastSeal = t.ClusterTime()
	t.Del(t.K.SessionStep(t.Session.Id, id, op.GetRank()))
	t.Put(t.K.Part(id, op.GetRank()), p.Encode())
	if err := countSeal(t, s, op.GetRank()); err != nil {
		return nil, err
	}
	if s.Sealed == s.World {
		if err := sealStep(t, s); err != nil {
			return nil, err
		}
	}
	if err := queueCheck(t, s); err != nil {
		return nil, err
	}
	putStep(t, s)
	stepChanged(t, id)
	return stepReply(s), nil
}

// begunPart returns a step of the present attempt that is not aborted, and the part of a rank that has
// begun it.
func begunPart(t *kvtx.Tx, op string, id record.StepID, rank uint32) (*record.Step, *record.Part, error) {
	if _, _, err := presentRun(t, op, id); err != nil {
		return nil, nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	switch {
	case err != nil:
		return nil, nil, err
	case s == nil:
		return nil, nil, kvtx.Fail(moraine.NotFound, op, id.String(), "no rank has begun the step")
	case s.Adopted():
		return nil, nil, byAdoption(op, s)
	case s.State == record.StepAborted:
		return nil, nil, kvtx.Fail(moraine.Aborted, op, id.String(), "%s", s.Reason)
	}
	p, err := PartRecord(&t.View, id, rank)
	if err == nil && p == nil {
		err = kvtx.Fail(moraine.InvalidArgument, op, id.String(), "rank %d has not begun the step", rank)
	}
	return s, p, err
}

// begunAgain is the error of a session whose rank belongs to another one by now.
func begunAgain(op string, id record.StepID, rank uint32) error {
	return kvtx.Fail(moraine.Fenced, op, id.String(), "another session has begun rank %d again", rank)
}

// takeFiles links unlinked files of the session into the step's directory and updates the step's
// totals.
func takeFiles(t *kvtx.Tx, s *record.Step, files []record.PartFile) error {
	dir, err := tree.Inode(t, s.Dir)
	if err != nil {
		return kvtx.Damaged(err)
	}
	names.Open(t, dir)
	for _, f := range files {
		i, err := tree.Inode(t, f.Inode)
		if err != nil {
			return err
		}
		ref := s.Id.String() + "/" + f.Name
		switch {
		case i.Typ != record.TypeFile || i.Owner == 0 || i.Owner != t.Session.Id:
			return kvtx.Fail(moraine.InvalidArgument, "seal part", ref, "inode %s is not a file without a name that the session has open", i.Id)
		case uint64(i.Size) != f.Size:
			return kvtx.Fail(moraine.InvalidArgument, "seal part", ref, "the file has %d bytes, but the request expects %d", i.Size, f.Size)
		case i.Tenant != dir.Tenant:
			return kvtx.Fail(moraine.CrossTenant, "seal part", ref, "the file and the run belong to different tenants")
		}
		if i.Lost() {
			return kvtx.Fail(moraine.Lost, "seal part", ref, "bytes of the file are lost: write the file again")
		}
		_, taken, err := tree.Lookup(&t.View, dir.Id, f.Name)
		if err != nil {
			return err
		}
		if taken {
			return kvtx.Fail(moraine.Exists, "seal part", ref, "")
		}
		names.Adopt(t, i)
		names.Link(t, dir, f.Name, i)
		i.Ctime, i.Sealed = t.Now, true
		tree.PutInode(t, i)
		s.Bytes += f.Size
		s.Degraded += i.Degraded
		s.AddFile(i.Safety())
	}
	return nil
}

// sealStep marks the step as sealed, after all ranks have sealed. The caller writes the step.
func sealStep(t *kvtx.Tx, s *record.Step) error {
	h := sha256.New()
	for n := range s.Blocks() {
		b, err := stepBlock(&t.View, s, n)
		if err != nil {
			return err
		}
		h.Write(b.Digest)
	}
	s.State, s.Digest = record.StepSealed, h.Sum(nil)
	t.Del(t.K.OpenStep(s.Id))
	return nil
}

// queueCheck queues the job that checks the step, if that is due: at the last seal, or at the first of a
// step of many ranks, whose headers the mover reads while ranks still seal. The caller writes the step.
func queueCheck(t *kvtx.Tx, s *record.Step) error {
	switch {
	case s.Job != 0 && s.State == record.StepSealed:
		j, err := jobs.Job(&t.View, s.Job)
		if err != nil || j == nil {
			return kvtx.Damaged(err)
		}
		jobs.RenewJob(t, j) // what failed before the last seal does not count
		return nil
	case s.Job != 0 || (s.State == record.StepOpen && s.World < wire.ManyRanks):
		return nil
	}
	var err error
	s.Job, err = jobs.AddJob(t, jobs.JobSpec{
		Kind: wire.JobKind_JOB_KIND_COMMIT_STEP, Subject: s.Id.String(), Step: s.Id, Total: uint64(s.World),
	})
	return err
}

// ReadParts lists the sealed parts of a checkpoint by rank, or all that were begun.
func ReadParts(v *kvtx.View, sc kvtx.Scope, op *wire.ListParts) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := runInScope(v, sc, "list parts", id.Run); err != nil {
		return nil, err
	}
	reply := &wire.PartsReply{}
	limit := tree.PageLimit(op.GetLimit())
	sent := sentSoFar{v: v, by: map[moraine.SessionID]uint64{}, left: maxSentLook}
	err := v.Each(v.K.Part(id, op.GetAfter()), kvtx.PrefixEnd(v.K.Parts(id)), func(key, value []byte) (bool, error) {
		var p record.Part
		if err := p.Decode(value); err != nil {
			return false, err
		}
		if !p.Sealed && !op.GetBegun() {
			return true, nil
		}
		if reply.More = len(reply.Parts) == limit; reply.More {
			return false, nil
		}
		part := p.ToWire(binary.BigEndian.Uint32(key[len(key)-4:]))
		reply.Parts = append(reply.Parts, part)
		if p.Sealed {
			return true, nil
		}
		var err error
		part.Sent, err = sent.of(p.Session)
		return true, err
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Parts{Parts: reply}}, err
}

// SessionGone updates checkpoints after a session ended. A step that waits for one of its ranks can
// never be complete and is aborted, and the session leaves its attempts.
func SessionGone(t *kvtx.Tx, id moraine.SessionID, budget int) (int, error) {
	const cost = 8 // records that one rank or one step may need
	most := (budget + cost - 1) / cost
	keys, err := t.KeysUnder(t.K.SessionSteps(id), most)
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
		if err := ranksGone(t, id, StepOfKey(group), keys[:n]); err != nil {
			return 0, err
		}
		keys = keys[n:]
	}
	if more || spent >= budget {
		return budget, nil
	}
	left, err := leaveAttempts(t, id, budget-spent)
	return spent + left, err
}

// ranksGone aborts a step that waits for ranks of an ended session.
func ranksGone(t *kvtx.Tx, id moraine.SessionID, of record.StepID, keys [][]byte) error {
	why := ""
	for _, key := range keys {
		t.Del(key)
		rank := binary.BigEndian.Uint32(key[len(key)-4:])
		p, err := PartRecord(&t.View, of, rank)
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
	s, err := tree.StepRecord(&t.View, of)
	if err != nil || s == nil || s.State != record.StepOpen || why == "" {
		return err
	}
	return abortStepRecord(t, s, "the session of "+record.Clip(why, 150)+" ended before it sealed")
}
