package state

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// abortStep ends a checkpoint that will never be committed, as a rank asks.
func (m *Machine) abortStep(t *tx, op *wire.AbortStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := t.presentRun("abort step", id); err != nil {
		return nil, err
	}
	s, err := t.stepRecord(id)
	if err != nil {
		return nil, err
	}
	switch {
	case s == nil:
		return nil, fail(moraine.NotFound, "abort step", id.String(), "")
	case s.State == record.StepAborted:
		return stepReply(s), nil
	case s.State != record.StepOpen && s.State != record.StepSealed:
		return nil, fail(moraine.Conflict, "abort step", id.String(), "it is committed")
	}
	reason := op.GetReason()
	if reason == "" {
		reason = "a rank gave up"
	}
	if err := m.abortStepRecord(t, s, reason); err != nil {
		return nil, err
	}
	return stepReply(s), nil
}

// abortSteps ends the checkpoints that the leader found silent. One whose ranks
// have gone on since is passed over.
func (m *Machine) abortSteps(t *tx, op *statepb.AbortSteps) (*wire.MetaResponse, error) {
	for _, w := range op.GetSteps() {
		s, err := t.stepRecord(stepFromWire(w.GetKey()))
		if err != nil {
			return nil, err
		}
		if s == nil || s.State != record.StepOpen || !s.Silent(t.clusterTime()) {
			continue
		}
		if err := m.abortStepRecord(t, s, w.GetReason()); err != nil {
			return nil, err
		}
	}
	return done(), nil
}

// SilentSteps returns at most limit open steps whose ranks have not sealed
// anything for as long as the step waits, as what aborts them.
func (m *Machine) SilentSteps(r Reader, limit int) ([]*wire.AbortStep, error) {
	v := m.view(r)
	c, err := v.counters()
	if err != nil {
		return nil, err
	}
	var out []*wire.AbortStep
	var bad error
	prefix := m.k.table(record.TabOpenStep)
	err = r.Scan(prefix, prefixEnd(prefix), func(key, _ []byte) bool {
		var s *record.Step
		if s, bad = v.mustStep(stepOfKey(key)); bad != nil {
			return false
		}
		if s.Silent(c[record.CClusterTime]) {
			out = append(out, &wire.AbortStep{Key: s.Id.ToWire(), Reason: s.SilenceReason()})
		}
		return len(out) < limit
	})
	if err == nil {
		err = bad
	}
	return out, err
}

// abortStepRecord makes a live step an aborted one, with the ranks that had not
// sealed. What was sealed is removed by a job.
func (m *Machine) abortStepRecord(t *tx, s *record.Step, reason string) error {
	missing, err := t.missingRanks(s)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		reason += "; missing: " + nameRanks(missing, int(s.World-s.Sealed))
	}
	job, dir := s.Job, s.Dir
	s.State, s.Reason, s.Missing, s.Job, s.Dir = record.StepAborted, record.Clip(reason, 2*moraine.MaxNameLen), missing, 0, 0
	t.putStep(s)
	t.del(t.k.openStep(s.Id))
	t.stepChanged(s.Id)
	if job != 0 {
		j, err := t.job(job)
		if err != nil {
			return err
		}
		if j != nil && j.Live() {
			if err := m.endJob(t, j, wire.JobState_JOB_STATE_CANCELED, record.Clip(reason, moraine.MaxNameLen)); err != nil {
				return err
			}
		}
	}
	return m.dropStep(t, s.Id, dir)
}

// nameRanks names the first few of n ranks.
func nameRanks(ranks []uint32, n int) string {
	const few = 16
	var b strings.Builder
	if n == 1 {
		b.WriteString("rank ")
	} else {
		b.WriteString("ranks ")
	}
	for i, r := range ranks[:min(len(ranks), few)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(record.Utoa(uint64(r)))
	}
	if n > few {
		b.WriteString(" and " + record.Utoa(uint64(n-few)) + " more")
	}
	return b.String()
}

// dropStep has a job remove a checkpoint's directory, which nothing names, and
// then the rows of its parts.
func (m *Machine) dropStep(t *tx, id record.StepID, dir moraine.InodeID) error {
	d, err := t.inode(dir)
	if err != nil {
		return damaged(err)
	}
	t.unseal(d)
	d.Detach()
	d.Nlink = 0
	t.putInode(d)
	job, err := m.addJob(t, jobSpec{kind: wire.JobKind_JOB_KIND_REMOVE_TREE, subject: id.String(), step: id})
	if err != nil {
		return err
	}
	t.put(t.k.detached(job, d.Id), []byte{record.DentryVersion})
	return nil
}

// runDropStep does about limit records of a job made by dropStep, dropParts or sweepStep.
func (m *Machine) runDropStep(t *tx, j *record.Job, limit int) (n int, finished bool, err error) {
	if j.Target != 0 {
		n, err = m.runSweep(t, j, limit)
		return n, false, err
	}
	n, finished, err = m.runRemoveTree(t, j.Id, limit)
	if err != nil || !finished {
		return n, false, err
	}
	for _, prefix := range [][]byte{t.k.parts(j.Step), t.k.stepBlocks(j.Step)} {
		if n >= limit {
			return n, false, nil
		}
		keys, err := t.keysUnder(prefix, limit-n)
		if err != nil {
			return n, false, err
		}
		for _, key := range keys {
			t.del(key)
		}
		n += len(keys)
	}
	return n, n < limit, nil
}
