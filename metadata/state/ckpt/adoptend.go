package ckpt

import (
	"strconv"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// maxAdoptTries is the number of refusals after which an adoption fails.
const maxAdoptTries = 12

// refused ends the job, or makes it try again, and aborts its step.
func (w *adopting) refused(why *refusal) error {
	j := w.job
	if err := leaveStep(w.Tx, j, why.text); err != nil {
		return err
	}
	return adoptAgain(w.Tx, j, w.Adoption, why)
}

// leaveStep aborts the unfinished step of an adoption.
func leaveStep(t *kvtx.Tx, j *record.Job, reason string) error {
	if j.Step.Attempt == 0 {
		return nil
	}
	s, err := tree.StepRecord(&t.View, j.Step)
	if err != nil || s == nil || s.Adopter != j.Id {
		return err
	}
	s.Adopter = 0
	return abortStepRecord(t, s, reason)
}

// adoptAgain makes a refused adoption try again after a growing delay, or ends it.
func adoptAgain(t *kvtx.Tx, j *record.Job, a *record.Adoption, why *refusal) error {
	j.Tries++
	j.Why, j.Err = why.kind, record.Clip(why.text, moraine.MaxNameLen)
	j.Step.Attempt = 0
	if why.final || !a.Quiet && why.kind == moraine.Conflict || j.Tries >= maxAdoptTries {
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, j.Err)
	}
	next := record.Adoption{Format: a.Format, Quiet: a.Quiet, Seen: a.Seen, Refused: a.Refused}
	if why.kind == moraine.Incomplete {
		next.Refused = a.Seen // the same files are refused again
	}
	j.Cursor = next.Encode()
	jobs.RetryJob(t, j)
	return nil
}

// adoptedStepAborted tells the job of an adopted step that the step was aborted. incomplete says that
// its check found that; without it, the check did not come to an end.
func adoptedStepAborted(t *kvtx.Tx, id moraine.JobID, reason string, incomplete bool) error {
	j, a, err := adoption(t, id)
	if err != nil || j == nil {
		return err
	}
	why := &refusal{kind: moraine.Aborted, text: reason}
	if incomplete {
		why.kind, why.final = moraine.Incomplete, !a.Quiet
	}
	return adoptAgain(t, j, a, why)
}

// adoptedStepCommitted ends the job of an adopted step.
func adoptedStepCommitted(t *kvtx.Tx, id moraine.JobID) error {
	j, _, err := adoption(t, id)
	if err != nil || j == nil {
		return err
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// adoption returns a live ADOPT job; nil if it has ended.
func adoption(t *kvtx.Tx, id moraine.JobID) (*record.Job, *record.Adoption, error) {
	j, err := jobs.Job(&t.View, id)
	if err != nil || j == nil || !j.Live() {
		return nil, nil, err
	}
	a := &record.Adoption{}
	return j, a, a.Decode(j.Cursor)
}

// CancelAdoption ends an ADOPT job.
func CancelAdoption(t *kvtx.Tx, j *record.Job, reason string) error {
	if err := leaveStep(t, j, reason); err != nil {
		return err
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_CANCELED, reason)
}

// AdoptionEnded makes room for the next adoption of the directory, and queues it if the directory
// became complete once more.
func AdoptionEnded(t *kvtx.Tx, j *record.Job) error {
	a := &record.Adoption{}
	if err := a.Decode(j.Cursor); err != nil {
		return err
	}
	t.Del(t.K.Adopt(moraine.InodeID(j.Target)))
	if !a.Quiet || !a.Again {
		return nil
	}
	of, err := tree.Inode(t, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && of.Nlink == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	step := record.StepID{Run: j.Step.Run, Step: j.Step.Step}
	_, err = names.WantAdoption(t, j.Kind, of, step, record.Adoption{Format: a.Format, Quiet: true}, 0)
	return err
}

// TrackerRead ends a READ_TRACKER job: text is what the tracker file has. It queues the adoption of
// the directory of the iteration.
func TrackerRead(t *kvtx.Tx, j *record.Job, text string) error {
	tracker, err := tree.Inode(t, moraine.InodeID(j.Target))
	if kvtx.MoraineKind(err) == moraine.NotFound || err == nil && tracker.Nlink == 0 {
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, "the file was removed")
	}
	if err != nil {
		return err
	}
	step, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, record.Clip("the file names no iteration: "+strconv.Quote(text), moraine.MaxNameLen))
	}
	name := iterDir(step)
	e, ok, err := tree.Lookup(&t.View, tracker.Parent, name)
	if err != nil {
		return err
	}
	if !ok || e.Typ != record.TypeDirectory {
		return jobs.EndJob(t, j, wire.JobState_JOB_STATE_FAILED, "the file names iteration "+record.Utoa(step)+", but there is no directory "+name)
	}
	dir, err := tree.Inode(t, e.Inode)
	if err != nil {
		return kvtx.Damaged(err)
	}
	a := record.Adoption{Format: wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON, Quiet: true}
	of := record.StepID{Run: moraine.RunID(tracker.Parent), Step: step}
	if _, err := names.WantAdoption(t, wire.JobKind_JOB_KIND_ADOPT, dir, of, a, 0); err != nil {
		return err
	}
	return jobs.EndJob(t, j, wire.JobState_JOB_STATE_DONE, "")
}

// iterDir returns the name that Megatron gives the directory of an iteration.
func iterDir(step uint64) string {
	n := record.Utoa(step)
	return "iter_" + strings.Repeat("0", max(0, 7-len(n))) + n
}
