package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// CommitStep publishes a sealed checkpoint at the request of the mover that checked it, under the
// mover's job lease. One entry adds the index, names the directory permanently, moves the links and
// ends the job. If the request has an error, the entry aborts the checkpoint instead.
func CommitStep(t *kvtx.Tx, op *wire.CommitStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	r, dir, err := runInScope(&t.View, t.Scope, "commit step", id.Run)
	if err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	if err != nil {
		return nil, err
	}
	switch {
	case s == nil:
		return nil, kvtx.Fail(moraine.NotFound, "commit step", id.String(), "")
	case s.State == record.StepCommitted && s.Job == moraine.JobID(op.GetJob()):
		return stepReply(s), nil // the answer was lost
	case s.State == record.StepAborted:
		return nil, kvtx.Fail(moraine.Aborted, "commit step", id.String(), "%s", s.Reason)
	}
	j, err := jobs.HeldJob(t, "commit step", op.GetJob(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	if j.Id != s.Job || s.State != record.StepSealed {
		return nil, kvtx.Fail(moraine.InvalidArgument, "commit step", id.String(), "job %s does not check the step, or the step is not sealed", j.Id)
	}
	if op.GetError() != "" {
		why := record.Clip(op.GetError(), moraine.MaxNameLen)
		s.Job = 0 // the job ends below, with the verdict
		if err := abortIncomplete(t, s, why); err != nil {
			return nil, err
		}
		if err := jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, why); err != nil {
			return nil, err
		}
		if s, err = tree.MustStep(&t.View, id); err != nil {
			return nil, err
		}
		return stepReply(s), nil
	}
	if err := takeIndex(t, s, op.GetIndex()); err != nil {
		return nil, err
	}
	if err := publish(t, r, dir, s); err != nil {
		return nil, err
	}
	if err := jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, ""); err != nil {
		return nil, err
	}
	return stepReply(s), nil
}

// AbortUnjudged aborts the step of a job that ended without a result. If ranks still have to seal it,
// another job checks it.
func AbortUnjudged(t *kvtx.Tx, j *record.Job, reason string) error {
	s, err := tree.StepRecord(&t.View, j.Step)
	if err != nil || s == nil || s.Job != j.Id || (s.State != record.StepSealed && s.State != record.StepOpen) {
		return err
	}
	s.Job = 0
	if s.State == record.StepOpen {
		putStep(t, s)
		return nil
	}
	return abortStepRecord(t, s, reason)
}

// takeIndex links the index, an unlinked file of the mover's session, into the step's directory.
func takeIndex(t *kvtx.Tx, s *record.Step, index *wire.PartFile) error {
	if index == nil {
		return nil
	}
	if t.Session == nil {
		return kvtx.Fail(moraine.InvalidArgument, "commit step", s.Id.String(), "the request has an index, but no session that wrote it")
	}
	if err := names.CheckName("commit step", index.GetName()); err != nil {
		return err
	}
	s.Index = moraine.InodeID(index.GetInode())
	return takeFiles(t, s, []record.PartFile{{Inode: s.Index, Name: index.GetName(), Crc: index.GetCrc(), Size: index.GetSize()}})
}

// publish makes a checked step visible.
func publish(t *kvtx.Tx, r *record.Run, runDir *record.Inode, s *record.Step) error {
	attemptDir, err := makeDir(t, "commit step", runDir, s.Id.AttemptDir())
	if err != nil {
		return err
	}
	_, taken, err := tree.Lookup(&t.View, attemptDir.Id, s.Id.Name())
	if err != nil {
		return err
	}
	if taken {
		return kvtx.Fail(moraine.Exists, "commit step", s.Id.String(), "another entry has the name of the step")
	}
	dir, err := tree.Inode(t, s.Dir)
	if err != nil {
		return kvtx.Damaged(err)
	}
	names.Link(t, attemptDir, s.Id.Name(), dir)
	names.Open(t, dir)
	tree.PutInode(t, dir)
	if err := flushByPolicy(t, s, dir); err != nil {
		return err
	}
	s.SetLevel(s.FilesLevel(), t.Now)
	adopter := s.Adopter
	s.State, s.At, s.Adopter = record.StepCommitted, t.Now, 0
	if t.Count[record.CLostStripes] > 0 {
		t.LossChanged() // its bytes may be among the lost ones: the leader will check
	}
	putStep(t, s)
	t.Put(t.K.RunCommit(s.Id), CommitRow(s))
	r.AddStep(s.Level, 1)
	t.Put(t.K.Run(r.Id), r.Encode())
	stepChanged(t, s.Id)
	if err := dropClaims(t, s.Id); err != nil {
		return err
	}
	if adopter != 0 {
		err = adoptedStepCommitted(t, adopter)
	} else {
		err = noteSaved(t, s.Id)
	}
	if err != nil {
		return err
	}
	if err := refreshStepLink(t, r, runDir, s.Id.Step); err != nil {
		return err
	}
	return refreshLinks(t, r, runDir)
}

// noteSaved notes in an attempt that its ranks have committed a step. Jobs adopt files in the name of the
// present attempt, and say nothing of its ranks.
func noteSaved(t *kvtx.Tx, id record.StepID) error {
	a, err := Attempt(&t.View, id.Run, id.Attempt)
	if err != nil {
		return err
	}
	a.Saved, a.SavedStep = true, id.Step
	t.Put(t.K.Attempt(id.Run, id.Attempt), a.Encode())
	return nil
}

// refreshLinks points `latest` and `latest-<level>` to the latest steps of the live branch.
func refreshLinks(t *kvtx.Tx, r *record.Run, dir *record.Inode) error {
	for level := moraine.Memory; level <= moraine.Object; level++ {
		var s *record.Step
		var err error
		if r.HasLevel(level) {
			if s, err = latest(&t.View, r.Id, r.Attempt, true, level); err != nil {
				return err
			}
		}
		if level == moraine.Memory { // every committed step is there, or safer
			if err := pointLink(t, dir, "latest", s); err != nil {
				return err
			}
		}
		if err := pointLink(t, dir, "latest-"+level.String(), s); err != nil {
			return err
		}
	}
	return nil
}

// refreshStepLink points `step-<n>` to the step of that number on the live branch. If the branch
// has none, it uses the latest earlier attempt that saved it.
func refreshStepLink(t *kvtx.Tx, r *record.Run, dir *record.Inode, number uint64) error {
	s, err := exactly(&t.View, r.Id, r.Attempt, true, number, wanted{})
	if err != nil {
		return err
	}
	if s == nil {
		if s, err = newestOf(&t.View, r, number, func(id record.StepID) (*record.Step, error) { return standing(&t.View, id, wanted{}) }); err != nil {
			return err
		}
	}
	if s == nil { // a lost step is better than none: its link shows where the step was
		if s, err = newestPresent(&t.View, r, number); err != nil {
			return err
		}
	}
	return pointLink(t, dir, record.StepID{Step: number}.Name(), s)
}

// newestPresent returns the step of that number from the latest attempt that has one, lost or not;
// nil if there is none.
func newestPresent(v *kvtx.View, r *record.Run, number uint64) (*record.Step, error) {
	return newestOf(v, r, number, func(id record.StepID) (*record.Step, error) { return present(v, id) })
}

// newestOf returns the step of that number that look returns, of the latest attempt for which it returns one.
func newestOf(v *kvtx.View, r *record.Run, number uint64, look func(record.StepID) (*record.Step, error)) (*record.Step, error) {
	var found *record.Step
	err := eachAttempt(v, r.Id, r.Attempt, func(at uint32) (bool, error) {
		id := record.StepID{Run: r.Id, Attempt: at, Step: number}
		_, ok, err := v.R.Get(v.K.RunCommit(id))
		if err == nil && ok {
			found, err = look(id)
		}
		return found == nil, err
	})
	return found, err
}

// pointLink makes name in a run's directory a symbolic link to a step, or removes it if s is nil.
// It leaves anything there that is no link.
func pointLink(t *kvtx.Tx, dir *record.Inode, name string, s *record.Step) error {
	e, ok, err := tree.Lookup(&t.View, dir.Id, name)
	if err != nil || (ok && e.Typ != record.TypeSymlink) || (!ok && s == nil) {
		return err
	}
	if !ok {
		link, err := names.MakeInode(t, record.Inode{Typ: record.TypeSymlink, Mode: 0o777, Uid: dir.Uid, Gid: dir.Gid, Nlink: 1,
			Tenant: dir.Tenant, Parent: dir.Id, Target: s.Id.String(), Sealed: true})
		if err != nil {
			return err
		}
		names.Link(t, dir, name, link)
		tree.PutInode(t, link)
		return nil
	}
	link, err := tree.Inode(t, e.Inode)
	if err != nil {
		return kvtx.Damaged(err)
	}
	names.Open(t, link)
	if s == nil {
		names.Unlink(t, dir, name, link)
		return names.DropName(t, link, name)
	}
	if target := s.Id.String(); link.Target != target || !link.Sealed {
		link.Target, link.Sealed = target, true
		link.Mtime, link.Ctime = t.Now, t.Now
		tree.PutInode(t, link)
		tree.Touch(t, dir)
	}
	return nil
}

// ReadStep answers the state of a checkpoint, and for an open one the ranks that it waits for.
func ReadStep(v *kvtx.View, sc kvtx.Scope, op *wire.GetStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	r, _, err := runInScope(v, sc, "get step", id.Run)
	if err != nil {
		return nil, err
	}
	if id.Attempt == 0 {
		id.Attempt = r.Attempt
	}
	s, err := tree.StepRecord(v, id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, kvtx.Fail(moraine.NotFound, "get step", id.String(), "")
	}
	if s.State == record.StepOpen {
		if s.Missing, err = MissingRanks(v, s); err != nil {
			return nil, err
		}
	}
	reply := stepReply(s)
	return reply, nameLoss(v, s, reply.GetStep().GetStep())
}

// ReadSteps lists the checkpoints of a run, by attempt and step.
func ReadSteps(v *kvtx.View, sc kvtx.Scope, op *wire.ListSteps) (*wire.MetaResponse, error) {
	r, _, err := runInScope(v, sc, "list steps", moraine.RunID(op.GetRun()))
	if err != nil {
		return nil, err
	}
	reply := &wire.StepsReply{}
	limit := tree.PageLimit(op.GetLimit())
	lo := v.K.Steps(r.Id)
	if op.GetAfterAttempt() > 0 {
		lo = append(v.K.Step(record.StepID{Run: r.Id, Attempt: op.GetAfterAttempt(), Step: op.GetAfterStep()}), 0)
	}
	err = v.Each(lo, kvtx.PrefixEnd(v.K.Steps(r.Id)), func(key, value []byte) (bool, error) {
		s := &record.Step{Id: StepOfKey(key)}
		if err := s.Decode(value); err != nil {
			return false, err
		}
		if !op.GetAll() && s.State != record.StepCommitted {
			return true, nil
		}
		if reply.More = len(reply.Steps) == limit; reply.More {
			return false, nil
		}
		w := s.ToWire()
		reply.Steps = append(reply.Steps, w)
		return true, nameLoss(v, s, w)
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Steps{Steps: reply}}, err
}
