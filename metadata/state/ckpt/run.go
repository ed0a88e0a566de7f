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

// maxLaunchLen is the longest launch or scheduler job, in bytes.
const maxLaunchLen = 255

// maxFencedSteps is the number of open steps of earlier attempts that a new attempt aborts at once.
// Others reach their timeout; they are fenced in any case.
const maxFencedSteps = 32

// Attempt returns an attempt's record, which must exist.
func Attempt(v *kvtx.View, run moraine.RunID, number uint32) (*record.Attempt, error) {
	b, ok, err := v.R.Get(v.K.Attempt(run, number))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, kvtx.Corrupt("attempt", moraine.InodeID(run).String()+"/"+record.Utoa(uint64(number)), "the attempt has no record")
	}
	a := &record.Attempt{Number: number}
	return a, a.Decode(b)
}

// OpenRun starts or joins an attempt of a run.
func OpenRun(t *kvtx.Tx, op *wire.OpenRun) (*wire.MetaResponse, error) {
	switch {
	case op.GetReadOnly():
		return visitRun(t, op)
	case op.GetLaunch() == "":
		return nil, kvtx.Fail(moraine.InvalidArgument, "open run", op.GetName(), "the request needs the name of the launch, which all its ranks share")
	case len(op.GetLaunch()) > maxLaunchLen || len(op.GetJob()) > maxLaunchLen:
		return nil, kvtx.Fail(moraine.NameTooLong, "open run", op.GetName(), "the names of launch and job have at most %d bytes", maxLaunchLen)
	}
	r, err := makeRun(t, op)
	if err != nil {
		return nil, err
	}
	known, err := AttemptOf(&t.View, r.Id, op.GetLaunch())
	if err != nil {
		return nil, err
	}
	if known == 0 {
		if err := mayBegin(t, r, op); err != nil {
			return nil, err
		}
		known = r.Attempt + 1
		if err := beginAttempt(t, r, op); err != nil {
			return nil, err
		}
	}
	if known != r.Attempt {
		return nil, kvtx.Fail(moraine.Fenced, "open run", op.GetName(), "launch %q is attempt %d, but attempt %d has taken over: if the job was started again, give this start a launch name of its own (MORAINE_LAUNCH)", op.GetLaunch(), known, r.Attempt)
	}
	t.Put(t.K.AttemptSession(r.Id, known, t.Session.Id), []byte{record.RunVersion})
	t.Put(t.K.SessionAttempt(t.Session.Id, r.Id, known), []byte{record.RunVersion})
	return runReply(t, r, op.GetName(), known)
}

// visitRun answers the state of a run to a caller that only lists and resolves.
func visitRun(t *kvtx.Tx, op *wire.OpenRun) (*wire.MetaResponse, error) {
	_, child, err := names.Entry(t, "open run", parentOr(t.Scope, op.GetParent()), op.GetName())
	if err != nil {
		return nil, err
	}
	r, err := tree.RunRecord(&t.View, moraine.RunID(child.Id))
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, kvtx.Fail(moraine.NotFound, "open run", op.GetName(), "the directory is not a training run")
	}
	return runReply(t, r, op.GetName(), r.Attempt)
}

// parentOr returns the requested directory, or the session's root.
func parentOr(sc kvtx.Scope, id uint64) uint64 {
	if id == 0 {
		return uint64(sc.Root)
	}
	return id
}

// makeRun finds the run, or makes its directory a run.
func makeRun(t *kvtx.Tx, op *wire.OpenRun) (*record.Run, error) {
	if err := names.CheckName("open run", op.GetName()); err != nil {
		return nil, err
	}
	parent, err := tree.Directory(t, moraine.InodeID(parentOr(t.Scope, op.GetParent())))
	if err != nil {
		return nil, err
	}
	dir, err := makeDir(t, "open run", parent, op.GetName())
	if err != nil {
		return nil, err
	}
	r, err := tree.RunRecord(&t.View, moraine.RunID(dir.Id))
	if err == nil && r == nil {
		r = &record.Run{Id: moraine.RunID(dir.Id)}
	}
	return r, err
}

// makeDir finds the directory name in parent, or creates it with the parent's owner and tenant.
func makeDir(t *kvtx.Tx, op string, parent *record.Inode, name string) (*record.Inode, error) {
	e, ok, err := tree.Lookup(&t.View, parent.Id, name)
	if err != nil {
		return nil, err
	}
	if ok {
		if e.Typ != record.TypeDirectory {
			return nil, kvtx.Fail(moraine.NotDirectory, op, name, "")
		}
		dir, err := tree.Inode(t, e.Inode)
		if err != nil {
			return nil, kvtx.Damaged(err)
		}
		return dir, nil
	}
	dir, err := names.MakeInode(t, record.Inode{Typ: record.TypeDirectory, Mode: 0o755, Uid: parent.Uid, Gid: parent.Gid, Nlink: 2,
		Tenant: parent.Tenant, Parent: parent.Id, Name: name})
	if err != nil {
		return nil, err
	}
	names.Link(t, parent, name, dir)
	return dir, nil
}

// AttemptOf returns the attempt that a launch started; 0 if none.
func AttemptOf(v *kvtx.View, run moraine.RunID, launch string) (uint32, error) {
	b, ok, err := v.R.Get(v.K.Launch(run, launch))
	if err != nil || !ok {
		return 0, err
	}
	return record.DecodeNumber[uint32](record.RunVersion, b, "launch")
}

// mayBegin decides whether a new launch may take the run over. A lower restart of a known scheduler
// job is late and may not. While the present attempt has live sessions, only a launch of its job
// may that is of no lower restart, or one that requests the takeover explicitly: a scheduler starts a job
// again after it has ended the earlier start, whose sessions may live on for a while.
func mayBegin(t *kvtx.Tx, r *record.Run, op *wire.OpenRun) error {
	if r.Attempt == 0 {
		return nil
	}
	if op.GetJob() != "" {
		highest, known, err := jobRestart(&t.View, r.Id, op.GetJob())
		if err != nil {
			return err
		}
		if known && op.GetRestart() < highest {
			return kvtx.Fail(moraine.Fenced, "open run", op.GetName(), "restart %d of job %s has already begun, which is later than restart %d", highest, op.GetJob(), op.GetRestart())
		}
	}
	present, err := Attempt(&t.View, r.Id, r.Attempt)
	if err != nil {
		return err
	}
	later := op.GetJob() != "" && op.GetJob() == present.Job && op.GetRestart() >= present.Restart
	if later || op.GetTakeover() {
		return nil
	}
	live, err := t.KeysUnder(t.K.AttemptSessions(r.Id, r.Attempt), 1)
	if err != nil {
		return err
	}
	if len(live) > 0 {
		return kvtx.Fail(moraine.Busy, "open run", op.GetName(), "attempt %d (launch %q) has live sessions: wait until they end, or request a takeover", r.Attempt, present.Launch)
	}
	return nil
}

// jobRestart returns the highest restart of a scheduler's job that started an attempt of the run.
func jobRestart(v *kvtx.View, run moraine.RunID, job string) (highest uint64, known bool, err error) {
	b, known, err := v.R.Get(v.K.RunJob(run, job))
	if err != nil || !known {
		return 0, false, err
	}
	highest, err = record.DecodeNumber[uint64](record.RunVersion, b, "restart of a job")
	return highest, true, err
}

// beginAttempt starts the next attempt. Every later request of an earlier attempt fails with
// Fenced.
func beginAttempt(t *kvtx.Tx, r *record.Run, op *wire.OpenRun) error {
	r.Attempt++
	a := &record.Attempt{Number: r.Attempt, Launch: op.GetLaunch(), Job: op.GetJob(), Restart: op.GetRestart()}
	t.Put(t.K.Run(r.Id), r.Encode())
	t.Put(t.K.Launch(r.Id, a.Launch), record.EncodeNumber(record.RunVersion, a.Number))
	if a.Job != "" {
		t.Put(t.K.RunJob(r.Id, a.Job), record.EncodeNumber(record.RunVersion, a.Restart))
	}
	prefix := record.Be64(t.K.Key(record.TabOpenStep, 8), uint64(r.Id))
	open, err := t.KeysUnder(prefix, maxFencedSteps)
	if err != nil {
		return err
	}
	for _, key := range open {
		s, err := tree.MustStep(&t.View, StepOfKey(key))
		if err != nil {
			return err
		}
		if err := abortStepRecord(t, s, "attempt "+record.Utoa(uint64(a.Number))+" has taken over"); err != nil {
			return err
		}
	}
	if err := pointBack(&t.View, r.Id, a); err != nil {
		return err
	}
	t.Put(t.K.Attempt(r.Id, a.Number), a.Encode())
	return nil
}

// pointBack points a new attempt to those before it that searches need. Its begin has aborted the open
// steps of the one before it.
func pointBack(v *kvtx.View, run moraine.RunID, a *record.Attempt) error {
	last := a.Number - 1
	if last == 0 {
		return nil
	}
	l, err := Attempt(v, run, last)
	if err != nil {
		return err
	}
	a.Stepped, a.Before = l.Stepped, l.Before
	if l.Resolved {
		a.Before = last
	}
	stepped, err := mayHaveSteps(v, run, last)
	if stepped {
		a.Stepped, a.Before = last, last
	}
	return err
}

// maxAbortedLooks is how many aborted steps of an attempt mayHaveSteps looks at.
const maxAbortedLooks = 16

// mayHaveSteps reports whether an attempt that has ended may have committed steps. A sealed one may still be
// committed.
func mayHaveSteps(v *kvtx.View, run moraine.RunID, attempt uint32) (may bool, err error) {
	looks := 0
	err = v.EachIn(record.Be32(record.Be64(v.K.Key(record.TabStep, 12), uint64(run)), attempt), func(_, value []byte) (bool, error) {
		s := &record.Step{}
		err := s.Decode(value)
		looks++
		may = s.State != record.StepAborted || looks > maxAbortedLooks
		return !may, err
	})
	return may, err
}

// eachAttempt calls fn with an attempt and those before it, latest first, until fn returns false. It passes
// over attempts without committed steps.
func eachAttempt(v *kvtx.View, run moraine.RunID, from uint32, fn func(attempt uint32) (more bool, err error)) error {
	for at := from; at > 0; {
		if more, err := fn(at); err != nil || !more {
			return err
		}
		a, err := Attempt(v, run, at)
		if err != nil {
			return err
		}
		at = a.Stepped
	}
	return nil
}

// runReply answers the run and the attempt of the caller.
func runReply(t *kvtx.Tx, r *record.Run, name string, attempt uint32) (*wire.MetaResponse, error) {
	w, err := runToWire(&t.View, r, name)
	if err != nil {
		return nil, err
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Run{Run: &wire.RunReply{Run: w, Attempt: attempt}}}, nil
}

// runToWire returns the wire form of a run.
func runToWire(v *kvtx.View, r *record.Run, name string) (*wire.Run, error) {
	w := &wire.Run{Id: uint64(r.Id), Name: name, Attempt: r.Attempt, Committed: r.Committed}
	if r.Attempt == 0 {
		return w, nil
	}
	a, err := Attempt(v, r.Id, r.Attempt)
	if err != nil {
		return nil, err
	}
	w.Launch, w.Resolved = a.Launch, a.Resolved
	if a.Parent != (record.StepID{}) {
		w.Parent = a.Parent.ToWire()
	}
	return w, nil
}

// leaveAttempts removes an ended session from the attempts that it joined.
func leaveAttempts(t *kvtx.Tx, id moraine.SessionID, budget int) (int, error) {
	keys, err := t.KeysUnder(t.K.SessionAttempts(id), (budget+1)/2)
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		tail := key[len(key)-12:]
		r, number := moraine.RunID(binary.BigEndian.Uint64(tail)), binary.BigEndian.Uint32(tail[8:])
		t.Del(key)
		t.Del(t.K.AttemptSession(r, number, id))
	}
	return 2 * len(keys), nil
}

// ReadRuns lists the training runs in a directory, by name.
func ReadRuns(v *kvtx.View, sc kvtx.Scope, op *wire.ListRuns) (*wire.MetaResponse, error) {
	dir, err := tree.ReadNamed(v, sc, moraine.InodeID(parentOr(sc, op.GetParent())))
	if err != nil {
		return nil, err
	}
	if dir.Typ != record.TypeDirectory {
		return nil, kvtx.Fail(moraine.NotDirectory, "list runs", dir.Id.String(), "")
	}
	reply := &wire.RunsReply{}
	limit := tree.PageLimit(op.GetLimit())
	prefix := v.K.Dentries(dir.Id)
	lo := prefix
	if op.GetAfter() != "" {
		lo = append(v.K.Dentry(dir.Id, op.GetAfter()), 0)
	}
	err = v.Each(lo, kvtx.PrefixEnd(prefix), func(key, value []byte) (bool, error) {
		name := string(key[len(prefix):])
		e, err := record.DecodeDentry(value)
		if err != nil || e.Typ != record.TypeDirectory {
			return true, err
		}
		r, err := tree.RunRecord(v, moraine.RunID(e.Inode))
		if err != nil || r == nil {
			return true, err
		}
		if reply.More = len(reply.Runs) == limit; reply.More {
			return false, nil
		}
		w, err := runToWire(v, r, name)
		reply.Runs = append(reply.Runs, w)
		return true, err
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Runs{Runs: reply}}, err
}
