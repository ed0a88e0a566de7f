package ckpt

import (
	"slices"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// AbortStep aborts a checkpoint at a rank's request.
func AbortStep(t *kvtx.Tx, op *wire.AbortStep) (*wire.MetaResponse, error) {
	id := stepFromWire(op.GetKey())
	if _, _, err := presentRun(t, "abort step", id); err != nil {
		return nil, err
	}
	s, err := tree.StepRecord(&t.View, id)
	if err != nil {
		return nil, err
	}
	switch {
	case s == nil:
		return nil, kvtx.Fail(moraine.NotFound, "abort step", id.String(), "")
	case s.State == record.StepAborted:
		return stepReply(s), nil
	case s.State != record.StepOpen && s.State != record.StepSealed:
		return nil, kvtx.Fail(moraine.Conflict, "abort step", id.String(), "the step is committed: remove it instead (moraine ckpt rm)")
	}
	reason := op.GetReason()
	if reason == "" {
		reason = "a rank gave up"
	}
	if err := abortStepRecord(t, s, reason); err != nil {
		return nil, err
	}
	return stepReply(s), nil
}

// AbortSteps aborts checkpoints that the leader found silent. It skips those with a seal since
// then.
func AbortSteps(t *kvtx.Tx, op *statepb.AbortSteps) (*wire.MetaResponse, error) {
	for _, w := range op.GetSteps() {
		s, err := tree.StepRecord(&t.View, stepFromWire(w.GetKey()))
		if err != nil {
			return nil, err
		}
		if s == nil || s.State != record.StepOpen || !s.Silent(t.ClusterTime()) {
			continue
		}
		if err := abortStepRecord(t, s, w.GetReason()); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// silentScan is how many open steps one call of SilentSteps reads.
const silentScan = 4096

// SilentSteps returns at most limit open steps without a seal for their timeout, as requests that
// abort them. It reads silentScan open steps from after on, and returns where the next call goes on: nil for
// the beginning. So the many open steps of one user do not delay what else the leader does in time.
func SilentSteps(v *kvtx.View, after []byte, limit int) (silent []*wire.AbortStep, next []byte, err error) {
	c, err := v.Counters()
	if err != nil {
		return nil, nil, err
	}
	table := v.K.Table(record.TabOpenStep)
	lo, read := table, 0
	if after != nil {
		lo = append(slices.Clone(after), 0)
	}
	err = v.Each(lo, kvtx.PrefixEnd(table), func(key, _ []byte) (bool, error) {
		s, err := tree.MustStep(v, StepOfKey(key))
		if err != nil {
			return false, err
		}
		if s.Silent(c[record.CClusterTime]) {
			silent = append(silent, &wire.AbortStep{Key: s.Id.ToWire(), Reason: s.SilenceReason()})
		}
		if read++; read < silentScan && len(silent) < limit {
			return true, nil
		}
		next = slices.Clone(key)
		return false, nil
	})
	return silent, next, err
}

// EndCheck aborts the step that a live job was to check, and ends the job: no mover came to a verdict.
func EndCheck(t *kvtx.Tx, j *record.Job) error {
	s, err := tree.MustStep(&t.View, j.Step)
	if err != nil {
		return kvtx.Damaged(err)
	}
	return abortStepRecord(t, s, record.Utoa(uint64(j.Leases))+" movers in turn began the check of the step and lost the lease: look for chunkservers that ended, or had no memory")
}

// abortStepRecord marks a live step as aborted and records the ranks that had not sealed. A job
// removes the sealed parts.
func abortStepRecord(t *kvtx.Tx, s *record.Step, reason string) error {
	return abortRecord(t, s, reason, false)
}

// abortIncomplete is abortStepRecord of a step that its check found incomplete.
func abortIncomplete(t *kvtx.Tx, s *record.Step, reason string) error {
	return abortRecord(t, s, reason, true)
}

func abortRecord(t *kvtx.Tx, s *record.Step, reason string, incomplete bool) error {
	if s.Adopted() {
		return abortAdopted(t, s, reason, incomplete)
	}
	missing, err := MissingRanks(&t.View, s)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		reason += "; missing: " + nameRanks(missing, int(s.World-s.Sealed))
	}
	dir := s.Dir
	s.Missing = missing
	if err := putAborted(t, s, reason); err != nil {
		return err
	}
	return dropStep(t, s.Id, dir)
}

// putAborted writes the record of a step as aborted, and ends the job that checks it.
func putAborted(t *kvtx.Tx, s *record.Step, reason string) error {
	job := s.Job
	s.State, s.Reason, s.Job, s.Dir = record.StepAborted, record.Clip(reason, 2*moraine.MaxNameLen), 0, 0
	putStep(t, s)
	t.Del(t.K.OpenStep(s.Id))
	stepChanged(t, s.Id)
	if job == 0 {
		return nil
	}
	j, err := jobs.Job(&t.View, job)
	if err != nil || j == nil || !j.Live() {
		return err
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_CANCELED, record.Clip(reason, moraine.MaxNameLen))
}

// abortAdopted aborts a step that a job makes of files. The same step may be made again at once, so
// the rows of its parts end with it. There are at most maxAdopted/partFiles of them.
func abortAdopted(t *kvtx.Tx, s *record.Step, reason string, incomplete bool) error {
	dir, adopter := s.Dir, s.Adopter
	s.Adopter, s.Sealed, s.Bytes, s.Degraded = 0, 0, 0, 0
	if err := putAborted(t, s, reason); err != nil {
		return err
	}
	for _, prefix := range [][]byte{t.K.Parts(s.Id), t.K.StepBlocks(s.Id)} {
		keys, err := t.KeysUnder(prefix, maxAdopted)
		if err != nil {
			return err
		}
		for _, key := range keys {
			t.Del(key)
		}
	}
	if err := dropDir(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, Subject: s.Id.String()}, dir); err != nil {
		return err
	}
	if adopter == 0 {
		return nil
	}
	return adoptedStepAborted(t, adopter, reason, incomplete)
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

// dropStep queues a job that removes a checkpoint's unlinked directory and then the rows of its
// parts.
func dropStep(t *kvtx.Tx, id record.StepID, dir moraine.InodeID) error {
	return dropDir(t, jobs.JobSpec{Kind: wire.JobKind_JOB_KIND_REMOVE_TREE, Subject: id.String(), Step: id}, dir)
}

// dropDir queues a job that removes a checkpoint's unlinked directory.
func dropDir(t *kvtx.Tx, spec jobs.JobSpec, dir moraine.InodeID) error {
	d, err := tree.Inode(t, dir)
	if err != nil {
		return kvtx.Damaged(err)
	}
	t.Count[record.CReserved] -= d.Reserved
	d.Reserved = 0
	names.Unseal(t, d)
	d.Detach()
	d.Nlink = 0
	tree.PutInode(t, d)
	job, err := jobs.AddJob(t, spec)
	if err != nil {
		return err
	}
	t.Put(t.K.Detached(job, d.Id), []byte{record.DentryVersion})
	return nil
}

// RunDropStep does about limit records of a job of dropStep, dropParts, sweepStep or dropClaims.
func RunDropStep(t *kvtx.Tx, j *record.Job, limit int) (n int, finished bool, err error) {
	if j.Target != 0 {
		n, err = runSweep(t, j, limit)
		return n, false, err
	}
	n, finished, err = names.RunRemoveTree(t, j.Id, limit)
	if err != nil || !finished {
		return n, false, err
	}
	rows := [][]byte{t.K.Claims(j.Step), t.K.Parts(j.Step), t.K.StepBlocks(j.Step)}
	s, err := tree.StepRecord(&t.View, j.Step)
	if err != nil {
		return n, false, err
	}
	if s != nil && s.State == record.StepCommitted {
		rows = rows[:1] // of dropClaims
	}
	for _, prefix := range rows {
		if n >= limit {
			return n, false, nil
		}
		keys, err := t.KeysUnder(prefix, limit-n)
		if err != nil {
			return n, false, err
		}
		for _, key := range keys {
			t.Del(key)
		}
		n += len(keys)
	}
	return n, n < limit, nil
}
