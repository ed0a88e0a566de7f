package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// commitStep publishes a sealed checkpoint, as the worker that checked it asks
// under its job's lease: one entry adds the index, gives the directory its name
// for ever, and moves the links. With an error it aborts the checkpoint. The
// job ends in the same entry.
func (m *Machine) commitStep(t *tx, op *wire.CommitStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	r, dir, err := t.runInScope(t.scope, "commit step", id.run)
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
	case s.state == stepCommitted && s.job == moraine.JobID(op.GetJob()):
		return stepReply(s), nil // the answer was lost
	case s.state == stepAborted:
		return nil, fail(moraine.Aborted, "commit step", id.String(), "%s", s.reason)
	}
	j, err := t.heldJob("commit step", op.GetJob(), op.GetLeaseEpoch())
	if err != nil {
		return nil, err
	}
	if j.id != s.job || s.state != stepSealed {
		return nil, fail(moraine.InvalidArgument, "commit step", id.String(), "job %s is not the step's", j.id)
	}
	if op.GetError() != "" {
		if err := m.endJob(t, j, wire.JobState_JOB_STATE_FAILED, clip(op.GetError(), moraine.MaxNameLen)); err != nil {
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
func (m *Machine) abortUnjudged(t *tx, j *job, reason string) error {
	s, err := t.stepRecord(j.step)
	if err != nil || s == nil || s.state != stepSealed || s.job != j.id {
		return err
	}
	s.job = 0
	return m.abortStepRecord(t, s, reason)
}

// takeIndex links the index of all tensors, an unlinked file of the worker's
// session, into the step's directory.
func (m *Machine) takeIndex(t *tx, s *step, index *wire.PartFile) error {
	if index == nil {
		return nil
	}
	if t.session == nil {
		return fail(moraine.InvalidArgument, "commit step", s.id.String(), "an index needs the session that wrote it")
	}
	if err := checkName("commit step", index.GetName()); err != nil {
		return err
	}
	s.index = moraine.InodeID(index.GetInode())
	return m.takeFiles(t, s, []partFile{{s.index, index.GetName(), index.GetCrc(), index.GetSize()}})
}

// publish makes a checked step visible.
func (m *Machine) publish(t *tx, r *run, runDir *inode, s *step) error {
	attemptDir, err := m.makeDir(t, "commit step", runDir, s.id.attemptDir())
	if err != nil {
		return err
	}
	_, taken, err := t.lookup(attemptDir.id, s.id.name())
	if err != nil {
		return err
	}
	if taken {
		return fail(moraine.Exists, "commit step", s.id.String(), "something else has its place")
	}
	dir, err := t.inode(s.dir)
	if err != nil {
		return damaged(err)
	}
	m.link(t, attemptDir, s.id.name(), dir)
	t.open(dir)
	dir.sealed, dir.step = true, s.id
	t.putInode(dir)
	if err := m.flushTree(t, dir); err != nil {
		return err
	}
	if s.level == 0 {
		s.level = moraine.NVMe // no file of it has content that could be less safe
	}
	s.state, s.at = stepCommitted, t.now
	if t.count[cLostStripes] > 0 {
		t.lossChanged() // its bytes may be among them: the leader looks
	}
	t.putStep(s)
	t.put(t.k.runCommit(s.id), []byte{stepVersion, byte(s.level)})
	r.committed++
	t.put(t.k.run(r.id), r.encode())
	t.stepChanged(s.id)
	if err := m.refreshStepLink(t, r, runDir, s.id.step); err != nil {
		return err
	}
	return m.refreshLinks(t, r, runDir)
}

// refreshLinks points `latest` and `latest-nvme` at the latest steps of the
// branch that is alive.
func (m *Machine) refreshLinks(t *tx, r *run, dir *inode) error {
	for _, l := range []struct {
		name  string
		level moraine.Level
	}{{"latest", 0}, {"latest-" + moraine.NVMe.String(), moraine.NVMe}} {
		s, err := t.latest(r.id, r.attempt, true, l.level)
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
func (m *Machine) refreshStepLink(t *tx, r *run, dir *inode, number uint64) error {
	s, err := t.exactly(r.id, r.attempt, true, number, 0)
	if err != nil {
		return err
	}
	for at := r.attempt; s == nil && at > 0; at-- {
		id := stepID{r.id, at, number}
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
	return m.pointLink(t, dir, stepID{step: number}.name(), s)
}

// newestPresent returns the step of that number of the latest attempt that has one, lost or
// not; nil where there is none.
func (v *view) newestPresent(r *run, number uint64) (*step, error) {
	for at := r.attempt; at > 0; at-- {
		id := stepID{r.id, at, number}
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
func (m *Machine) pointLink(t *tx, dir *inode, name string, s *step) error {
	e, ok, err := t.lookup(dir.id, name)
	if err != nil || (ok && e.typ != typeSymlink) || (!ok && s == nil) {
		return err
	}
	if !ok {
		link, err := m.makeInode(t, inode{typ: typeSymlink, mode: 0o777, uid: dir.uid, gid: dir.gid, nlink: 1,
			tenant: dir.tenant, parent: dir.id, target: s.id.String(), sealed: true})
		if err != nil {
			return err
		}
		m.link(t, dir, name, link)
		t.putInode(link)
		return nil
	}
	link, err := t.inode(e.inode)
	if err != nil {
		return damaged(err)
	}
	t.open(link)
	if s == nil {
		m.unlink(t, dir, name, link)
		return m.dropName(t, link, name)
	}
	if target := s.id.String(); link.target != target || !link.sealed {
		link.target, link.sealed = target, true
		link.mtime, link.ctime = t.now, t.now
		t.putInode(link)
		t.touch(dir)
	}
	return nil
}

// readStep answers what a checkpoint is, and which ranks an open one waits for.
func (v *view) readStep(sc scope, op *wire.GetStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := v.runInScope(sc, "get step", id.run); err != nil {
		return nil, err
	}
	s, err := v.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fail(moraine.NotFound, "get step", id.String(), "")
	}
	if s.state == stepOpen {
		if s.missing, err = v.missingRanks(s); err != nil {
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
	lo := v.k.steps(r.id)
	if op.GetAfterAttempt() > 0 {
		lo = append(v.k.step(stepID{r.id, op.GetAfterAttempt(), op.GetAfterStep()}), 0)
	}
	var bad error
	err = v.r.Scan(lo, prefixEnd(v.k.steps(r.id)), func(key, value []byte) bool {
		s := &step{id: stepOfKey(key)}
		if bad = s.decode(value); bad != nil {
			return false
		}
		if !op.GetAll() && s.state != stepCommitted {
			return true
		}
		if reply.More = len(reply.Steps) == limit; reply.More {
			return false
		}
		w := s.toWire()
		bad = v.nameLoss(s, w)
		reply.Steps = append(reply.Steps, w)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_Steps{Steps: reply}}, err
}
