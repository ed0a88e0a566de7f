package state

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of a checkpoint.
const (
	// MaxWorld is the most ranks.
	MaxWorld = 1 << 16
	// MaxMissing is the most missing ranks that an answer names.
	MaxMissing = 1000
	// DefaultSealTimeout is how long an open step waits for the next seal where
	// BeginStep does not say, in milliseconds of cluster time.
	DefaultSealTimeout = 600_000
)

func stepFromWire(w *wire.StepKey) record.StepID {
	return record.StepID{Run: moraine.RunID(w.GetRun()), Attempt: w.GetAttempt(), Step: w.GetStep()}
}

// stepOfKey returns the checkpoint that a key ends with.
func stepOfKey(key []byte) record.StepID {
	tail := key[len(key)-20:]
	return record.StepID{
		Run: moraine.RunID(binary.BigEndian.Uint64(tail)), Attempt: binary.BigEndian.Uint32(tail[8:]), Step: binary.BigEndian.Uint64(tail[12:]),
	}
}

func stepReply(s *record.Step) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Step{Step: &wire.StepReply{Step: s.ToWire()}}}
}

// stepRecord returns a checkpoint's record; nil where there is none.
func (v *view) stepRecord(id record.StepID) (*record.Step, error) {
	b, ok, err := v.r.Get(v.k.step(id))
	if err != nil || !ok {
		return nil, err
	}
	s := &record.Step{Id: id}
	return s, s.Decode(b)
}

// mustStep returns a step that another record refers to.
func (v *view) mustStep(id record.StepID) (*record.Step, error) {
	s, err := v.stepRecord(id)
	if err == nil && s == nil {
		err = &moraine.Error{Op: "step", Ref: id.String(), Kind: moraine.Corrupt}
	}
	return s, err
}

func (t *tx) putStep(s *record.Step) { t.put(t.k.step(s.Id), s.Encode()) }

// stepChanged tells those who wait.
func (t *tx) stepChanged(id record.StepID) {
	t.events.StepsChanged = append(t.events.StepsChanged, id.ToWire())
}

// runInScope returns the run of a request and its directory, which must be in
// the caller's scope.
func (v *view) runInScope(sc scope, op string, id moraine.RunID) (*record.Run, *record.Inode, error) {
	dir, err := v.named(sc, moraine.InodeID(id))
	if err != nil {
		return nil, nil, err
	}
	r, err := v.runRecord(id)
	if err != nil {
		return nil, nil, err
	}
	ref := moraine.InodeID(id).String()
	if r == nil {
		return nil, nil, fail(moraine.NotFound, op, ref, "no such training run")
	}
	if dir.Nlink == 0 {
		return nil, nil, fail(moraine.NotFound, op, ref, "the run's directory was removed")
	}
	return r, dir, nil
}

// presentRun is runInScope for what only the present attempt may do.
func (t *tx) presentRun(op string, id record.StepID) (*record.Run, *record.Inode, error) {
	r, dir, err := t.runInScope(t.scope, op, id.Run)
	switch {
	case err != nil:
		return nil, nil, err
	case id.Attempt < r.Attempt:
		return nil, nil, fail(moraine.Fenced, op, id.String(), "attempt %d has taken over", r.Attempt)
	case id.Attempt > r.Attempt:
		return nil, nil, fail(moraine.InvalidArgument, op, id.String(), "attempt %d is the latest", r.Attempt)
	}
	return r, dir, nil
}

// beginStep has a rank take part in a checkpoint, which the first one to begin
// makes. A rank that begins again, from another session, takes the place of the
// one before.
func (m *Machine) beginStep(t *tx, op *wire.BeginStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if op.GetWorld() == 0 || op.GetWorld() > MaxWorld || op.GetRank() >= op.GetWorld() {
		return nil, fail(moraine.InvalidArgument, "begin step", id.String(), "rank %d of %d; a checkpoint has 1 to %d ranks", op.GetRank(), op.GetWorld(), MaxWorld)
	}
	_, dir, err := t.presentRun("begin step", id)
	if err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		if s, err = m.makeStep(t, id, dir, op); err != nil {
			return nil, err
		}
	}
	switch {
	case s.State == record.StepAborted:
		return nil, fail(moraine.Aborted, "begin step", id.String(), "%s", s.Reason)
	case s.State != record.StepOpen:
		return nil, fail(moraine.Exists, "begin step", id.String(), "it is saved already")
	case s.World != op.GetWorld():
		return nil, fail(moraine.Conflict, "begin step", id.String(), "other ranks say that there are %d of them, rank %d says %d", s.World, op.GetRank(), op.GetWorld())
	}
	p, err := t.partRecord(id, op.GetRank())
	if err != nil {
		return nil, err
	}
	if p == nil || !p.Sealed {
		if p != nil && p.Session != t.session.Id {
			t.del(t.k.sessionStep(p.Session, id, op.GetRank()))
		}
		t.put(t.k.part(id, op.GetRank()), (&record.Part{Session: t.session.Id}).Encode())
		t.put(t.k.sessionStep(t.session.Id, id, op.GetRank()), []byte{record.StepVersion})
	}
	return stepReply(s), nil
}

// makeStep makes a checkpoint's record and its directory, which has no name
// until the checkpoint is committed. Its parent is the run's directory all the
// same, so that a session confined to the run may write for it.
func (m *Machine) makeStep(t *tx, id record.StepID, run *record.Inode, op *wire.BeginStep) (*record.Step, error) {
	dir, err := m.makeInode(t, record.Inode{Typ: record.TypeDirectory, Mode: 0o755, Uid: run.Uid, Gid: run.Gid, Nlink: 2,
		Tenant: run.Tenant, Parent: run.Id, Sealed: true})
	if err != nil {
		return nil, err
	}
	s := &record.Step{Id: id, State: record.StepOpen, World: op.GetWorld(), Dir: dir.Id, Timeout: op.GetSealTimeoutMillis(), LastSeal: t.clusterTime()}
	if s.Timeout == 0 {
		s.Timeout = DefaultSealTimeout
	}
	t.putStep(s)
	t.put(t.k.openStep(id), []byte{record.StepVersion})
	t.stepChanged(id)
	return s, nil
}
