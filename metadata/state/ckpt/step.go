package ckpt

import (
	"encoding/binary"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of a checkpoint.
const (
	// maxWorld is the largest number of ranks.
	maxWorld = 1 << 16
	// MaxMissing is the largest number of missing ranks named in an answer.
	MaxMissing = 1000
	// defaultSealTimeout is how long an open step waits for the next seal if BeginStep sets no
	// timeout, in milliseconds of cluster time.
	defaultSealTimeout = 600_000
)

func stepFromWire(w *wire.StepKey) record.StepID {
	return record.StepID{Run: moraine.RunID(w.GetRun()), Attempt: w.GetAttempt(), Step: w.GetStep()}
}

// StepOfKey returns the checkpoint at the end of a key.
func StepOfKey(key []byte) record.StepID {
	tail := key[len(key)-20:]
	return record.StepID{
		Run: moraine.RunID(binary.BigEndian.Uint64(tail)), Attempt: binary.BigEndian.Uint32(tail[8:]), Step: binary.BigEndian.Uint64(tail[12:]),
	}
}

func stepReply(s *record.Step) *wire.MetaResponse {
	return &wire.MetaResponse{Result: &wire.MetaResponse_Step{Step: &wire.StepReply{Step: s.ToWire()}}}
}

// putStep writes the record of a step.
func putStep(t *kvtx.Tx, s *record.Step) { t.Put(t.K.Step(s.Id), s.Encode()) }

// stepChanged notifies those that wait for a change of the step.
func stepChanged(t *kvtx.Tx, id record.StepID) {
	t.Events.StepsChanged = append(t.Events.StepsChanged, id.ToWire())
}

// runInScope returns the run of a request and its directory, which must be in the caller's scope.
func runInScope(v *kvtx.View, sc kvtx.Scope, op string, id moraine.RunID) (*record.Run, *record.Inode, error) {
	dir, err := tree.ReadNamed(v, sc, moraine.InodeID(id))
	if err != nil {
		return nil, nil, err
	}
	r, err := tree.RunRecord(v, id)
	if err != nil {
		return nil, nil, err
	}
	ref := moraine.InodeID(id).String()
	if r == nil {
		return nil, nil, kvtx.Fail(moraine.NotFound, op, ref, "the directory is not a training run")
	}
	if dir.Nlink == 0 {
		return nil, nil, kvtx.Fail(moraine.NotFound, op, ref, "the directory of the run was removed")
	}
	return r, dir, nil
}

// presentRun is runInScope for requests that only the present attempt may make.
func presentRun(t *kvtx.Tx, op string, id record.StepID) (*record.Run, *record.Inode, error) {
	r, dir, err := runInScope(&t.View, t.Scope, op, id.Run)
	switch {
	case err != nil:
		return nil, nil, err
	case id.Attempt < r.Attempt:
		return nil, nil, kvtx.Fail(moraine.Fenced, op, id.String(), "attempt %d has taken over", r.Attempt)
	case id.Attempt > r.Attempt:
		return nil, nil, kvtx.Fail(moraine.InvalidArgument, op, id.String(), "the latest attempt of the run is %d", r.Attempt)
	}
	return r, dir, nil
}

// BeginStep adds a rank to a checkpoint; the first rank creates it. A rank that begins again from
// another session replaces its former session.
func BeginStep(t *kvtx.Tx, op *wire.BeginStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if op.GetWorld() == 0 || op.GetWorld() > maxWorld || op.GetRank() >= op.GetWorld() {
		return nil, kvtx.Fail(moraine.InvalidArgument, "begin step", id.String(), "rank %d of %d is invalid: a step has 1 to %d ranks", op.GetRank(), op.GetWorld(), maxWorld)
	}
	if op.GetLevel() > uint32(moraine.Object) {
		return nil, kvtx.Fail(moraine.InvalidArgument, "begin step", id.String(), "level %d is unknown: a part is accepted at memory or nvme", op.GetLevel())
	}
	if op.GetSealTimeoutMillis() > wire.MaxSealTimeoutMillis {
		return nil, kvtx.Fail(moraine.InvalidArgument, "begin step", id.String(), "a step may wait %d ms for the next seal at most, not %d", wire.MaxSealTimeoutMillis, op.GetSealTimeoutMillis())
	}
	_, dir, err := presentRun(t, "begin step", id)
	if err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		if s, err = makeStep(t, id, dir, op); err != nil {
			return nil, err
		}
	}
	switch {
	case s.Adopted():
		return nil, byAdoption("begin step", s)
	case s.State == record.StepAborted:
		return nil, kvtx.Fail(moraine.Aborted, "begin step", id.String(), "%s", s.Reason)
	case s.State != record.StepOpen:
		return nil, kvtx.Fail(moraine.Exists, "begin step", id.String(), "all ranks have already sealed the step")
	case s.World != op.GetWorld():
		return nil, kvtx.Fail(moraine.Conflict, "begin step", id.String(), "the step has %d ranks, but rank %d expects %d", s.World, op.GetRank(), op.GetWorld())
	}
	if s.StaysInMemory && moraine.Level(op.GetLevel()) >= moraine.NVMe {
		s.StaysInMemory = false
		putStep(t, s)
	}
	p, err := PartRecord(&t.View, id, op.GetRank())
	if err != nil {
		return nil, err
	}
	if p == nil || !p.Sealed {
		if p != nil && p.Session != t.Session.Id {
			t.Del(t.K.SessionStep(p.Session, id, op.GetRank()))
		}
		next := &record.Part{Session: t.Session.Id, Begun: t.Now}
		if p != nil {
			next.Reserved, next.Claims = p.Reserved, p.Claims
		}
		if p != nil && p.Session == next.Session {
			next.Begun = p.Begun
		}
		if err := reserve(t, s, next, op.GetBytes()); err != nil {
			return nil, err
		}
		t.Put(t.K.Part(id, op.GetRank()), next.Encode())
		t.Put(t.K.SessionStep(t.Session.Id, id, op.GetRank()), []byte{record.StepVersion})
	}
	return stepReply(s), nil
}

// byAdoption is the answer to a rank whose step a job makes of files: a rank cannot add to it.
func byAdoption(op string, s *record.Step) error {
	return kvtx.Fail(moraine.Exists, op, s.Id.String(), "the step is adopted from files: save under another number")
}

// makeStep creates a checkpoint's record and its directory, which has no name until the commit. Its
// parent is the run's directory from the start, so that a session confined to the run may write
// into it.
func makeStep(t *kvtx.Tx, id record.StepID, run *record.Inode, op *wire.BeginStep) (*record.Step, error) {
	dir, err := names.MakeInode(t, record.Inode{Typ: record.TypeDirectory, Mode: 0o755, Uid: run.Uid, Gid: run.Gid, Nlink: 2,
		Tenant: run.Tenant, Parent: run.Id, Sealed: true, Step: id})
	if err != nil {
		return nil, err
	}
	s := &record.Step{Id: id, State: record.StepOpen, World: op.GetWorld(), Dir: dir.Id, Timeout: op.GetSealTimeoutMillis(), LastSeal: t.ClusterTime()}
	if s.Timeout == 0 {
		s.Timeout = defaultSealTimeout
	}
	if s.StaysInMemory, err = staysInMemory(&t.View, run.Id, id.Step); err != nil {
		return nil, err
	}
	putStep(t, s)
	t.Put(t.K.OpenStep(id), []byte{record.StepVersion})
	stepChanged(t, id)
	return s, nil
}
