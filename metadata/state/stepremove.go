package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// removal says how a checkpoint is taken away.
type removal struct {
	// force takes the run's last good checkpoint too.
	force bool
	// emptied leaves the directory where it is, to whoever is emptying it.
	emptied bool
}

// removeStep takes a checkpoint away: at once out of sight, its bytes by a job. The
// links move to what is the latest then.
func (m *Machine) removeStep(t *tx, op *wire.RemoveStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	r, dir, err := t.runInScope(t.scope, "remove step", id.Run)
	if err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, fail(moraine.NotFound, "remove step", id.String(), "")
	}
	return done(), m.takeAway(t, r, dir, s, removal{force: op.GetForce()})
}

// takeAway removes a checkpoint in this command: from the list of the run, from the
// links, and from the namespace. One that is removed already is fine.
func (m *Machine) takeAway(t *tx, r *record.Run, runDir *record.Inode, s *record.Step, how removal) error {
	t.ignoresQuota = true // it may make links
	switch s.State {
	case record.StepDeleted:
		return nil
	case record.StepOpen, record.StepSealed:
		return fail(moraine.Busy, "remove step", s.Id.String(), "it is being saved: abort it first")
	}
	if s.State == record.StepCommitted {
		if err := t.mayTakeAway(r, s, how); err != nil {
			return err
		}
		if err := m.hideStep(t, runDir, s, how); err != nil {
			return err
		}
		if err := t.markRemovedIndex(s); err != nil {
			return err
		}
		t.del(t.k.runCommit(s.Id))
		r.Committed--
		if s.Lost() {
			s.Loss = record.StepLoss{}
			t.count[record.CLostSteps]--
		}
		t.put(t.k.run(r.Id), r.Encode())
	}
	s.State, s.Dir, s.Index, s.Missing = record.StepDeleted, 0, 0, nil
	t.putStep(s)
	t.stepChanged(s.Id)
	if err := m.refreshStepLink(t, r, runDir, s.Id.Step); err != nil {
		return err
	}
	return m.refreshLinks(t, r, runDir)
}

// mayTakeAway fails where a committed checkpoint is being read, or is the last good one:
// of the run, or of the branch that `latest` follows.
func (t *tx) mayTakeAway(r *record.Run, s *record.Step, how removal) error {
	if err := t.mindReaders(s.Id); err != nil || how.force {
		return err
	}
	there, err := t.present(s.Id)
	if err != nil || there == nil {
		return err // nobody can restore it
	}
	if s.Lost() {
		// Its bytes may be found again: a run without a good checkpoint keeps it.
		other, err := t.otherStep(r, s.Id, false)
		if err != nil || other {
			return err
		}
		return fail(moraine.Immutable, "remove step", s.Id.String(), "bytes of it are lost, but its run has no good checkpoint: only moraine ckpt rm --force removes it")
	}
	was, err := t.latest(r.Id, r.Attempt, true, 0)
	if err != nil {
		return err
	}
	if was != nil && was.Id != s.Id {
		return nil
	}
	other, err := t.otherStep(r, s.Id, was != nil)
	if err != nil || other {
		return err
	}
	return fail(moraine.Immutable, "remove step", s.Id.String(), "it is the last good checkpoint of its run: only moraine ckpt rm --force removes it")
}

// otherStep reports whether a run has another good checkpoint than id; with branch, on
// the branch that is alive.
func (t *tx) otherStep(r *record.Run, id record.StepID, branch bool) (bool, error) {
	key := t.k.runCommit(id)
	row, _, err := t.Get(key)
	if err != nil {
		return false, err
	}
	t.del(key) // as it will be
	defer t.put(key, row)
	if branch {
		s, err := t.latest(r.Id, r.Attempt, true, 0)
		return s != nil, err
	}
	found := false
	var bad error
	prefix := t.k.runCommits(r.Id)
	err = t.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		id := stepOfKey(key)
		id.Step = ^id.Step
		var s *record.Step
		s, bad = t.standing(id, 0)
		found = s != nil
		return bad == nil && !found
	})
	if err == nil {
		err = bad
	}
	return found, err
}

// hideStep unlinks a committed step's directory and has a job remove what was in it, and
// the rows of its parts. A directory that is being emptied stays where it is, an
// ordinary one, and only the rows go.
func (m *Machine) hideStep(t *tx, runDir *record.Inode, s *record.Step, how removal) error {
	d, err := t.inode(s.Dir)
	if moraineKind(err) == moraine.NotFound {
		return m.dropParts(t, s.Id)
	}
	if err != nil {
		return err
	}
	e, ok, err := t.lookup(runDir.Id, s.Id.AttemptDir())
	if err != nil {
		return err
	}
	if ok && !how.emptied && e.Inode == d.Parent && d.Nlink > 0 {
		attemptDir, err := t.inode(d.Parent)
		if err != nil {
			return damaged(err)
		}
		m.unlink(t, attemptDir, s.Id.Name(), d)
		return m.dropStep(t, s.Id, d.Id)
	}
	t.unseal(d)
	t.putInode(d)
	if how.emptied && d.Nlink > 0 {
		return m.sweepStep(t, s.Id, d.Id)
	}
	return m.dropParts(t, s.Id)
}

// dropParts has a job take away the rows of a checkpoint's parts.
func (m *Machine) dropParts(t *tx, id record.StepID) error {
	_, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_REMOVE_TREE, subject: id.String(), step: id})
	return err
}

// mayRemoveSteps fails where a tree that holds committed checkpoints is removed: without
// force always, and with it where one of them is being read, or where its run stays, whose
// links would then point at nothing.
func (t *tx) mayRemoveSteps(dir, tree *record.Inode, force bool) error {
	n, err := t.stepsBelow(tree)
	switch {
	case err != nil || n == 0:
		return err
	case !force:
		return holdsSteps(tree.Id, n)
	}
	r, err := t.runRecord(moraine.RunID(dir.Id))
	if err != nil {
		return err
	}
	if r != nil {
		return fail(moraine.Immutable, "remove tree", tree.Id.String(), "it holds committed checkpoints (%d) of a run that stays: remove each of them (moraine ckpt rm), or the run", n)
	}
	t.forced = true
	return t.mindReadersBelow(tree)
}
