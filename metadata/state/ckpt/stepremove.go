package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// removal says how to remove a checkpoint.
type removal struct {
	// force allows the removal of the run's last good checkpoint.
	force bool
	// emptied leaves the directory in place for the client that is emptying it.
	emptied bool
}

// RemoveStep hides a checkpoint at once; a job removes its bytes. The links move to the latest
// remaining checkpoint.
func RemoveStep(t *kvtx.Tx, op *wire.RemoveStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	r, dir, err := runInScope(&t.View, t.Scope, "remove step", id.Run)
	if err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, kvtx.Fail(moraine.NotFound, "remove step", id.String(), "")
	}
	return kvtx.Done(), takeAway(t, r, dir, s, removal{force: op.GetForce()})
}

// takeAway removes a checkpoint in this command from the run's list, the links and the namespace.
// It succeeds if the checkpoint is already removed.
func takeAway(t *kvtx.Tx, r *record.Run, runDir *record.Inode, s *record.Step, how removal) error {
	t.IgnoresQuota = true // it may make links
	switch s.State {
	case record.StepDeleted:
		return nil
	case record.StepOpen, record.StepSealed:
		return kvtx.Fail(moraine.Busy, "remove step", s.Id.String(), "a launch still saves the step: abort it first")
	}
	if s.State == record.StepCommitted {
		if err := mayTakeAway(t, r, s, how); err != nil {
			return err
		}
		if err := hideStep(t, runDir, s, how); err != nil {
			return err
		}
		if err := tier.MarkRemovedIndex(t, s); err != nil {
			return err
		}
		t.Del(t.K.RunCommit(s.Id))
		r.AddStep(s.Level, -1)
		if s.Lost() {
			s.Loss = record.StepLoss{}
			t.Count[record.CLostSteps]--
		}
		t.Put(t.K.Run(r.Id), r.Encode())
	}
	s.State, s.Dir, s.Index, s.Missing = record.StepDeleted, 0, 0, nil
	putStep(t, s)
	stepChanged(t, s.Id)
	if err := refreshStepLink(t, r, runDir, s.Id.Step); err != nil {
		return err
	}
	return refreshLinks(t, r, runDir)
}

// mayTakeAway fails if a session has a read lease on the committed checkpoint.
// It also fails for a pinned one, for the one from which the present attempt continues, and for
// the last good one of the run or of the branch that `latest` follows.
func mayTakeAway(t *kvtx.Tx, r *record.Run, s *record.Step, how removal) error {
	if err := mindReaders(&t.View, s.Id); err != nil || how.force {
		return err
	}
	if err := mindPins(t, r, s); err != nil {
		return err
	}
	there, err := present(&t.View, s.Id)
	if err != nil || there == nil {
		return err // its directory was removed, so nobody can restore it
	}
	if s.Lost() {
		// Its bytes may be found again, so that a run without a good checkpoint keeps it.
		other, err := otherStep(t, r, s.Id, false)
		if err != nil || other {
			return err
		}
		return kvtx.Fail(moraine.Immutable, "remove step", s.Id.String(), "the step lost bytes, but its run has no good step: only moraine ckpt rm --force removes it")
	}
	was, err := latest(&t.View, r.Id, r.Attempt, true, 0)
	if err != nil {
		return err
	}
	if was != nil && was.Id != s.Id {
		return nil
	}
	other, err := otherStep(t, r, s.Id, was != nil)
	if err != nil || other {
		return err
	}
	return kvtx.Fail(moraine.Immutable, "remove step", s.Id.String(), "the step is the last good one of its run: only moraine ckpt rm --force removes it")
}

// mindPins fails if a checkpoint is pinned, or the present attempt continues from it.
func mindPins(t *kvtx.Tx, r *record.Run, s *record.Step) error {
	if s.Pinned {
		return kvtx.Fail(moraine.Immutable, "remove step", s.Id.String(), "the step is pinned: moraine ckpt unpin first, or moraine ckpt rm --force")
	}
	a, err := Attempt(&t.View, r.Id, r.Attempt)
	if err == nil && a.Parent == s.Id {
		err = kvtx.Fail(moraine.Immutable, "remove step", s.Id.String(), "attempt %d continues from the step: only moraine ckpt rm --force removes it", a.Number)
	}
	return err
}

// otherStep reports whether a run has a good checkpoint other than id; with branch set, on the live
// branch.
func otherStep(t *kvtx.Tx, r *record.Run, id record.StepID, branch bool) (bool, error) {
	key := t.K.RunCommit(id)
	row, _, err := t.Get(key)
	if err != nil {
		return false, err
	}
	t.Del(key) // the state after the removal
	defer t.Put(key, row)
	if branch {
		s, err := latest(&t.View, r.Id, r.Attempt, true, 0)
		return s != nil, err
	}
	found := false
	err = t.EachIn(t.K.RunCommits(r.Id), func(key, _ []byte) (bool, error) {
		id := StepOfKey(key)
		id.Step = ^id.Step
		s, err := standing(&t.View, id, wanted{})
		found = s != nil
		return !found, err
	})
	return found, err
}

// hideStep unlinks a committed step's directory and queues a job that removes its content and the
// rows of its parts. A directory that a client is emptying stays, as an ordinary one, and the job
// removes only the rows.
func hideStep(t *kvtx.Tx, runDir *record.Inode, s *record.Step, how removal) error {
	d, err := tree.Inode(t, s.Dir)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return dropParts(t, s.Id)
	}
	if err != nil {
		return err
	}
	e, ok, err := tree.Lookup(&t.View, runDir.Id, s.Id.AttemptDir())
	if err != nil {
		return err
	}
	if ok && !how.emptied && e.Inode == d.Parent && d.Nlink > 0 {
		attemptDir, err := tree.Inode(t, d.Parent)
		if err != nil {
			return kvtx.Damaged(err)
		}
		names.Unlink(t, attemptDir, s.Id.Name(), d)
		return dropStep(t, s.Id, d.Id)
	}
	names.Unseal(t, d)
	tree.PutInode(t, d)
	if how.emptied && d.Nlink > 0 {
		return sweepStep(t, s.Id, d.Id)
	}
	return dropParts(t, s.Id)
}

// dropParts queues a job that removes the rows of a checkpoint's parts.
func dropParts(t *kvtx.Tx, id record.StepID) error {
	_, err := jobs.AddJob(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, Subject: id.String(), Step: id})
	return err
}

// mayRemoveSteps fails if a request removes a tree with committed checkpoints
// without force. With force it still fails if a session has a read lease on one
// of them. It also fails if the run stays and its links would point to nothing.
func mayRemoveSteps(t *kvtx.Tx, dir, top *record.Inode, force bool) error {
	n, err := names.StepsBelow(t, top)
	switch {
	case err != nil || n == 0:
		return err
	case !force:
		return usage.HoldsSteps(top.Id, n)
	}
	r, err := tree.RunRecord(&t.View, moraine.RunID(dir.Id))
	if err != nil {
		return err
	}
	if r != nil {
		return kvtx.Fail(moraine.Immutable, "remove tree", top.Id.String(), "the directory has %d committed steps of a run: remove each of them (moraine ckpt rm), or the whole run", n)
	}
	t.Forced = true
	return mindReadersBelow(t, top)
}
