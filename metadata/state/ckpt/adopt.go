package ckpt

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/metadata/state/usage"
	"github.com/morainefs/moraine/transport/wire"
)

// A step may have clones of files that a framework wrote (record.Adoption). Its parts are groups of
// files and not ranks, and no session takes part. The job joins the current attempt of the run and
// fences nobody. A run without an attempt gets one, which any launch may take over.

// adoptLaunch is the launch of the attempt that an adoption makes.
const adoptLaunch = "adopted"

// AdoptStep creates the job that makes a directory a step. For a directory that a job already makes
// the same step, the reply is that job.
func AdoptStep(t *kvtx.Tx, op *wire.AdoptStep) (*wire.MetaResponse, error) {
	const what = "adopt step"
	f := op.GetFormat()
	if f != wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP && f != wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON && f != wire.CheckpointFormat_CHECKPOINT_FORMAT_HF {
		return nil, kvtx.Fail(moraine.InvalidArgument, what, op.GetName(), "checkpoint format %d is unknown", f)
	}
	src, err := tree.Directory(t, moraine.InodeID(op.GetDir()))
	if err != nil {
		return nil, err
	}
	if src.Sealed {
		return nil, kvtx.Fail(moraine.InvalidArgument, what, src.Id.String(), "the directory is a step already")
	}
	r, err := makeRun(t, &wire.OpenRun{Parent: op.GetParent(), Name: op.GetName()})
	if err != nil {
		return nil, err
	}
	run, err := tree.Inode(t, moraine.InodeID(r.Id))
	if err != nil {
		return nil, kvtx.Damaged(err)
	}
	inside, err := tree.Below(&t.View, src.Id, run.Id)
	switch {
	case err != nil:
		return nil, err
	case inside:
		return nil, kvtx.Fail(moraine.InvalidArgument, what, op.GetName(), "the run is the directory to adopt or lies in it: choose a run elsewhere")
	case run.Tenant != src.Tenant:
		return nil, kvtx.Fail(moraine.CrossTenant, what, op.GetName(), "the directory belongs to another tenant than the run: copy it instead")
	}
	id := record.StepID{Run: r.Id, Step: op.GetStep()}
	j, err := names.AdoptionOf(&t.View, src.Id)
	if err != nil {
		return nil, err
	}
	if j != nil {
		if j.Step.Run != id.Run || j.Step.Step != id.Step {
			return nil, kvtx.Fail(moraine.Busy, what, src.Id.String(), "job %s makes the directory another step: wait until it ends", j.Id)
		}
		return usage.JobsReply(j), nil
	}
	owner, err := jobs.JobOwner(t, what)
	if err != nil {
		return nil, err
	}
	job, err := names.WantAdoption(t, wire.JobKind_JOB_KIND_ADOPT, src, id, record.Adoption{Format: f}, owner)
	if err != nil {
		return nil, err
	}
	if j, err = jobs.Job(&t.View, job); err != nil {
		return nil, err
	}
	return usage.JobsReply(j), nil
}

// beginAdoption decides whether the step can be made, and makes its record and its directory.
func (w *adopting) beginAdoption() (*refusal, error) {
	t, want := w.Tx, w.job.Step
	run, err := tree.Inode(t, moraine.InodeID(want.Run))
	if err != nil {
		return nil, kvtx.Damaged(err)
	}
	if w.Quiet && w.src.Parent != run.Id {
		return refuse(moraine.NotFound, "the directory was moved"), nil
	}
	in, err := tree.InJobScope(&t.View, w.job, run)
	if err != nil || !in {
		return refuse(moraine.NotFound, "the run was moved out of the session's scope"), err
	}
	if why := content.FitsQuota(t, run.Id, w.src.Id); why != nil {
		if !kvtx.IsAnswer(why) {
			return nil, why
		}
		return refuse(kvtx.MoraineKind(why), "%s", why.Error()), nil
	}
	r, err := tree.RunRecord(&t.View, want.Run)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = &record.Run{Id: want.Run}
	}
	if r.Attempt == 0 {
		if err := beginAttempt(t, r, &wire.OpenRun{Launch: adoptLaunch}); err != nil {
			return nil, err
		}
	}
	have, err := w.stepBefore(r)
	if have != nil && have.State == record.StepCommitted && have.Adopted() && err == nil {
		w.job.Step = have.Id
		w.Begin(record.AdoptCheck) // against the step that is there
		return nil, nil
	}
	if why := mayAdopt(have); why != nil || err != nil {
		return why, err
	}
	w.job.Step.Attempt = r.Attempt
	parts := (w.Files + partFiles - 1) / partFiles
	s, err := makeStep(t, w.job.Step, run, &wire.BeginStep{World: uint32(parts)})
	if err != nil {
		return nil, err
	}
	s.Format, s.From, s.Adopter = w.Format, w.src.Id, w.job.Id
	putStep(t, s)
	w.Begin(record.AdoptCopy)
	return nil, nil
}

// stepBefore returns the step of that number that a reader finds now, or else what the current
// attempt has of it; nil if it has nothing.
func (w *adopting) stepBefore(r *record.Run) (*record.Step, error) {
	s, err := exactly(&w.View, r.Id, r.Attempt, true, w.job.Step.Step, wanted{})
	if s != nil || err != nil {
		return s, err
	}
	return tree.StepRecord(&w.View, record.StepID{Run: r.Id, Attempt: r.Attempt, Step: w.job.Step.Step})
}

// mayAdopt says why a step with this record, or nil, cannot be made.
func mayAdopt(s *record.Step) *refusal {
	switch {
	case s == nil || s.State == record.StepAborted && s.Adopted():
		return nil
	case s.State == record.StepOpen || s.State == record.StepSealed:
		why := refuse(moraine.Busy, "%s is being saved", s.Id)
		why.final = false
		return why
	case s.State == record.StepCommitted:
		return refuse(moraine.Exists, "%s is there already, and its ranks saved it: choose another step or run", s.Id)
	}
	return refuse(moraine.Exists, "%s was %s in this attempt: choose another step or run", s.Id, stateWord(s.State))
}

func stateWord(s wire.StepState) string {
	if s == record.StepAborted {
		return "aborted"
	}
	return "removed"
}
