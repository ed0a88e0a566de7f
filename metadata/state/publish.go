package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// commitStep publishes a sealed checkpoint, as the worker that checked it asks
// under its job's lease: one entry adds the index, gives the directory its name
// for ever, and moves the links. With an error it aborts the checkpoint. The
// job ends in the same entry.
func (m *Machine) commitStep(t *tx, op *wire.CommitStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	r, dir, err := t.runInScope(t.scope, "commit step", id.Run)
	if err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	switch {
	case s == nil:
		return nil, fail(moraine.NotFound, "commit step", id.String(), "")
	case s.State == record.StepCommitted && s.Job == moraine.JobID(op.GetJob()):
		return stepReply(s), nil // the answer was lost
	case s.State == record.StepAborted:
		return nil, fail(moraine.Aborted, "commit step", id.String(), "%s", s.Reason)
	}
	j, err := t.heldJob("commit step", op.GetJob(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	if j.Id != s.Job || s.State != record.StepSealed {
		return nil, fail(moraine.InvalidArgument, "commit step", id.String(), "job %s is not the step's", j.Id)
	}
	if op.GetError() != "" {
		if err := m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, record.Clip(op.GetError(), moraine.MaxNameLen)); err != nil {
			return nil, err
		}
		if s, err = t.mustStep(id); err != nil {
			return nil, err
		}
		return stepReply(s), nil
	}
	if err := m.takeIndex(t, s, op.GetIndex()); err != nil {
		return nil, err
	}
	if err := m.publish(t, r, dir, s); err != nil {
		return nil, err
	}
	if err := m.endJob(t, j, wire.JobState_JOB_STATE_DONE, ""); err != nil {
		return nil, err
	}
	return stepReply(s), nil
}

// abortUnjudged aborts the step of a job that ended without a verdict.
func (m *Machine) abortUnjudged(t *tx, j *record.Job, reason string) error {
	s, err := t.stepRecord(j.Step)
	if err != nil || s == nil || s.State != record.StepSealed || s.Job != j.Id {
		return err
	}
	s.Job = 0
	return m.abortStepRecord(t, s, reason)
}

// takeIndex links the index of all tensors, an unlinked file of the worker's
// session, into the step's directory.
func (m *Machine) takeIndex(t *tx, s *record.Step, index *wire.PartFile) error {
	if index == nil {
		return nil
	}
	if t.session == nil {
		return fail(moraine.InvalidArgument, "commit step", s.Id.String(), "an index needs the session that wrote it")
	}
	if err := checkName("commit step", index.GetName()); err != nil {
		return err
	}
	s.Index = moraine.InodeID(index.GetInode())
	return m.takeFiles(t, s, []record.PartFile{{Inode: s.Index, Name: index.GetName(), Crc: index.GetCrc(), Size: index.GetSize()}})
}

// publish makes a checked step visible.
func (m *Machine) publish(t *tx, r *record.Run, runDir *record.Inode, s *record.Step) error {
	attemptDir, err := m.makeDir(t, "commit step", runDir, s.Id.AttemptDir())
	if err != nil {
		return err
	}
	_, taken, err := t.lookup(attemptDir.Id, s.Id.Name())
	if err != nil {
		return err
	}
	if taken {
		return fail(moraine.Exists, "commit step", s.Id.String(), "something else has its place")
	}
	dir, err := t.inode(s.Dir)
	if err != nil {
		return damaged(err)
	}
	m.link(t, attemptDir, s.Id.Name(), dir)
	t.open(dir)
	dir.Sealed, dir.Step = true, s.Id
	t.putInode(dir)
	if err := m.flushTree(t, dir); err != nil {
		return err
	}
	if s.Level == 0 {
		s.Level = moraine.NVMe // no file of it has content that could be less safe
	}
	s.State, s.At = record.StepCommitted, t.now
	if t.count[record.CLostStripes] > 0 {
		t.lossChanged() // its bytes may be among them: the leader looks
	}
	t.putStep(s)
	t.put(t.k.runCommit(s.Id), []byte{record.StepVersion, byte(s.Level)})
	r.Committed++
	t.put(t.k.run(r.Id), r.Encode())
	t.stepChanged(s.Id)
	if err := m.refreshStepLink(t, r, runDir, s.Id.Step); err != nil {
		return err
	}
	return m.refreshLinks(t, r, runDir)
}

// refreshLinks points `latest` and `latest-nvme` at the latest steps of the
// branch that is alive.
func (m *Machine) refreshLinks(t *tx, r *record.Run, dir *record.Inode) error {
	for _, l := range []struct {
		name  string
		level moraine.Level
	}{{"latest", 0}, {"latest-" + moraine.NVMe.String(), moraine.NVMe}} {
		s, err := t.latest(r.Id, r.Attempt, true, l.level)
		if err != nil {
			return err
		}
		if err := m.pointLink(t, dir, l.name, s); err != nil {
			return err
		}
	}
	return nil
}

// refreshStepLink points `step-<n>` at the step of that number on the branch
// that is alive; where the branch has none, at the latest attempt's that saved
// it before.
func (m *Machine) refreshStepLink(t *tx, r *record.Run, dir *record.Inode, number uint64) error {
	s, err := t.exactly(r.Id, r.Attempt, true, number, 0)
	if err != nil {
		return err
	}
	for at := r.Attempt; s == nil && at > 0; at-- {
		id := record.StepID{Run: r.Id, Attempt: at, Step: number}
		_, ok, err := t.Get(t.k.runCommit(id))
		if err != nil {
			return err
		}
		if ok {
			if s, err = t.standing(id, 0); err != nil {
				return err
			}
		}
	}
	if s == nil { // one that is lost is better than none: its link says where it was
		if s, err = t.newestPresent(r, number); err != nil {
			return err
		}
	}
	return m.pointLink(t, dir, record.StepID{Step: number}.Name(), s)
}

// newestPresent returns the step of that number of the latest attempt that has one, lost or
// not; nil where there is none.
func (v *view) newestPresent(r *record.Run, number uint64) (*record.Step, error) {
	for at := r.Attempt; at > 0; at-- {
		id := record.StepID{Run: r.Id, Attempt: at, Step: number}
		_, ok, err := v.r.Get(v.k.runCommit(id))
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if s, err := v.present(id); s != nil || err != nil {
			return s, err
		}
	}
	return nil, nil
}

// pointLink makes name in a run's directory a symbolic link to a step, or takes
// it away for nil. What a person put there that is no link stays.
func (m *Machine) pointLink(t *tx, dir *record.Inode, name string, s *record.Step) error {
	e, ok, err := t.lookup(dir.Id, name)
	if err != nil || (ok && e.Typ != record.TypeSymlink) || (!ok && s == nil) {
		return err
	}
	if !ok {
		link, err := m.makeInode(t, record.Inode{Typ: record.TypeSymlink, Mode: 0o777, Uid: dir.Uid, Gid: dir.Gid, Nlink: 1,
			Tenant: dir.Tenant, Parent: dir.Id, Target: s.Id.String(), Sealed: true})
		if err != nil {
			return err
		}
		m.link(t, dir, name, link)
		t.putInode(link)
		return nil
	}
	link, err := t.inode(e.Inode)
	if err != nil {
		return damaged(err)
	}
	t.open(link)
	if s == nil {
		m.unlink(t, dir, name, link)
		return m.dropName(t, link, name)
	}
	if target := s.Id.String(); link.Target != target || !link.Sealed {
		link.Target, link.Sealed = target, true
		link.Mtime, link.Ctime = t.now, t.now
		t.putInode(link)
		t.touch(dir)
	}
	return nil
}

// readStep answers what a checkpoint is, and which ranks an open one waits for.
func (v *view) readStep(sc scope, op *wire.GetStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := v.runInScope(sc, "get step", id.Run); err != nil {
		return nil, err
	}
	s, err := v.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fail(moraine.NotFound, "get step", id.String(), "")
	}
	if s.State == record.StepOpen {
		if s.Missing, err = v.missingRanks(s); err != nil {
			return nil, err
		}
	}
	reply := stepReply(s)
	return reply, v.nameLoss(s, reply.GetStep().GetStep())
}

// readSteps lists the checkpoints of a run, by attempt and step.
func (v *view) readSteps(sc scope, op *wire.ListSteps) (*wire.MetaResponse, error) {
	r, _, err := v.runInScope(sc, "list steps", moraine.RunID(op.GetRun()))
	if err != nil {
		return nil, err
	}
	reply := &wire.StepsReply{}
	limit := pageLimit(op.GetLimit())
	lo := v.k.steps(r.Id)
	if op.GetAfterAttempt() > 0 {
		lo = append(v.k.step(record.StepID{Run: r.Id, Attempt: op.GetAfterAttempt(), Step: op.GetAfterStep()}), 0)
	}
	var bad error
	err = v.r.Scan(lo, prefixEnd(v.k.steps(r.Id)), func(key, value []byte) bool {
		s := &record.Step{Id: stepOfKey(key)}
		if bad = s.Decode(value); bad != nil {
			return false
		}
		if !op.GetAll() && s.State != record.StepCommitted {
			return true
		}
		if reply.More = len(reply.Steps) == limit; reply.More {
			return false
		}
		w := s.ToWire()
		bad = v.nameLoss(s, w)
		reply.Steps = append(reply.Steps, w)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Steps{Steps: reply}}, err
}
