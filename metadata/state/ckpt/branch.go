package ckpt

import (
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
	"github.com/morainefs/moraine/transport/wire"
)

// The branch of an attempt is its own steps, its parent's attempt up to the parent step, and so on.
// If an attempt has not fixed its parent yet, every step of the attempt before it is on the branch: the
// latest that has steps, or a parent.
// Steps after the parent of a later attempt are abandoned: they are on no live branch.

// branch calls fn with each attempt of a branch and the greatest step of it on the branch, latest
// first, until fn returns false. own says whether the attempt's own steps count.
func branch(v *kvtx.View, run moraine.RunID, from uint32, own bool, fn func(attempt uint32, limit uint64) (more bool, err error)) error {
	limit := uint64(math.MaxUint64)
	for at := from; at > 0; {
		if own || at != from {
			if more, err := fn(at, limit); err != nil || !more {
				return err
			}
		}
		a, err := Attempt(v, run, at)
		switch {
		case err != nil:
			return err
		case !a.Resolved:
			at, limit = a.Before, math.MaxUint64
		case a.Parent.Attempt < at: // 0 if it has none
			at, limit = a.Parent.Attempt, a.Parent.Step
		default:
			return kvtx.Corrupt("branch", a.Parent.String(), "the step is the parent of attempt %d, which is not later", at)
		}
	}
	return nil
}

// wanted says which steps a search finds.
type wanted struct {
	level   moraine.Level // or safer
	tag     string        // empty: any
	healthy bool          // marked so
}

// fits reports whether the search finds a committed step that is whole.
func (w *wanted) fits(s *record.Step) bool {
	return s.Level >= w.level && s.Mark != record.StepQuarantined &&
		(w.tag == "" || slices.Contains(s.Tags, w.tag)) && (!w.healthy || s.Mark == record.StepHealthy)
}

// latest returns the greatest committed step of a branch at level or safer that still exists; nil
// if there is none.
func latest(v *kvtx.View, run moraine.RunID, from uint32, own bool, level moraine.Level) (*record.Step, error) {
	return latestUpTo(v, run, from, own, wanted{level: level}, record.StepID{Attempt: math.MaxUint32})
}

// latestUpTo is latest of the wanted steps before one of the branch's steps.
func latestUpTo(v *kvtx.View, run moraine.RunID, from uint32, own bool, want wanted, before record.StepID) (*record.Step, error) {
	var found *record.Step
	err := branch(v, run, from, own, func(attempt uint32, limit uint64) (bool, error) {
		switch {
		case attempt > before.Attempt || attempt == before.Attempt && before.Step == 0:
			return true, nil
		case attempt == before.Attempt:
			limit = min(limit, before.Step-1)
		}
		first := v.K.RunCommit(record.StepID{Run: run, Attempt: attempt, Step: limit})
		end := kvtx.PrefixEnd(record.Be32(record.Be64(v.K.Key(record.TabRunCommit, 12), uint64(run)), attempt))
		err := v.Each(first, end, func(key, value []byte) (bool, error) {
			if moraine.Level(value[len(value)-1]) < want.level {
				return true, nil
			}
			id := StepOfKey(key)
			id.Step = ^id.Step
			s, err := standing(v, id, want)
			found = s
			return found == nil, err
		})
		return found == nil, err
	})
	return found, err
}

// standing returns a committed step if it is wanted, has lost no bytes, and its directory was not
// removed; otherwise nil.
func standing(v *kvtx.View, id record.StepID, want wanted) (*record.Step, error) {
	s, err := present(v, id)
	if err != nil || s == nil || s.Lost() || !want.fits(s) {
		return nil, err
	}
	return s, nil
}

// present returns a committed step whose directory was not removed, lost or not; otherwise nil.
func present(v *kvtx.View, id record.StepID) (*record.Step, error) {
	s, err := tree.MustStep(v, id)
	if err != nil || s.State != record.StepCommitted {
		return nil, err
	}
	dir, err := tree.ReadInode(v, s.Dir)
	if kvtx.MoraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || dir.Nlink == 0 {
		return nil, err
	}
	return s, nil
}

// exactly returns the committed step of a number on a branch, the latest if several attempts saved
// it; nil if there is none.
func exactly(v *kvtx.View, run moraine.RunID, from uint32, own bool, number uint64, want wanted) (*record.Step, error) {
	var found *record.Step
	err := branch(v, run, from, own, func(attempt uint32, limit uint64) (bool, error) {
		if number > limit {
			return true, nil
		}
		id := record.StepID{Run: run, Attempt: attempt, Step: number}
		_, ok, err := v.R.Get(v.K.RunCommit(id))
		if err != nil || !ok {
			return err == nil, err
		}
		found, err = standing(v, id, want)
		return found == nil, err
	})
	return found, err
}

// findStep answers a ResolveStep from a branch; nil if no step matches.
func findStep(v *kvtx.View, run moraine.RunID, from uint32, own bool, op *wire.ResolveStep) (*record.Step, error) {
	want := wanted{level: moraine.Level(min(op.GetLevel(), 255)), tag: op.GetTag(), healthy: op.GetHealthy()}
	if op.GetExact() {
		return exactly(v, run, from, own, op.GetStep(), want)
	}
	before := record.StepID{Attempt: math.MaxUint32}
	if b := op.GetBefore(); b != nil {
		before = stepFromWire(b)
	}
	return latestUpTo(v, run, from, own, want, before)
}

// ReadResolve answers from which checkpoint an attempt would continue now.
func ReadResolve(v *kvtx.View, sc kvtx.Scope, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	r, _, err := runInScope(v, sc, "resolve step", moraine.RunID(op.GetRun()))
	if err != nil {
		return nil, err
	}
	from := op.GetAttempt()
	if from == 0 {
		from = r.Attempt
	}
	if from > r.Attempt {
		return nil, kvtx.Fail(moraine.InvalidArgument, "resolve step", moraine.InodeID(r.Id).String(), "the latest attempt of the run is %d", r.Attempt)
	}
	s, err := findStep(v, r.Id, from, true, op)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, noStep(v, r, op)
	}
	return stepReply(s), nil
}

// noStep is the error if no step matches.
func noStep(v *kvtx.View, r *record.Run, op *wire.ResolveStep) error {
	ref := moraine.InodeID(op.GetRun()).String()
	if op.GetExact() {
		s, err := newestPresent(v, r, op.GetStep())
		if err != nil {
			return err
		}
		switch {
		case s == nil:
		case s.Lost():
			return kvtx.Fail(moraine.Lost, "resolve step", s.Id.String(), "bytes of the step are lost: moraine ckpt show lists them")
		case s.Mark == record.StepQuarantined:
			return kvtx.Fail(moraine.NotFound, "resolve step", s.Id.String(), "the step is quarantined: moraine ckpt show has the reason, moraine ckpt mark removes the mark")
		}
		return kvtx.Fail(moraine.NotFound, "resolve step", ref, "the branch has no committed step %d at this level", op.GetStep())
	}
	return kvtx.Fail(moraine.NotFound, "resolve step", ref, "the branch has no committed step at this level%s", asMarked(op))
}

// asMarked says which mark and tag a search wanted.
func asMarked(op *wire.ResolveStep) string {
	text := ""
	if op.GetTag() != "" {
		text += " with tag " + op.GetTag()
	}
	if op.GetHealthy() {
		text += " that is marked healthy"
	}
	return text
}

// ResolveStep fixes the checkpoint from which the present attempt continues. The first answer
// becomes the attempt's parent, also if it is that there is none. All later answers, to every rank,
// are the same, until the attempt has committed a step of its own: all of its ranks have then begun, so who
// asks is another start under the same name, for which the parent is too old.
func ResolveStep(t *kvtx.Tx, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	t.IgnoresQuota = true // a full quota must not prevent a restore; the links are few
	id := record.StepID{Run: moraine.RunID(op.GetRun()), Attempt: op.GetAttempt()}
	if id.Attempt == 0 || op.GetBefore() != nil {
		return nil, kvtx.Fail(moraine.InvalidArgument, "resolve step", moraine.InodeID(id.Run).String(), "the request that fixes the parent of an attempt needs the attempt, and no step limit")
	}
	r, dir, err := presentRun(t, "resolve step", id)
	if err != nil {
		return nil, err
	}
	a, err := Attempt(&t.View, r.Id, r.Attempt)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Saved:
		return nil, kvtx.Fail(moraine.Conflict, "resolve step", record.StepID{Run: r.Id, Attempt: a.Number, Step: a.SavedStep}.String(), "launch %q has committed step %d since it began: if the job was started again, this launch name was used before, so name the new launch (MORAINE_LAUNCH); "+
			"otherwise open the step without making it the parent", a.Launch, a.SavedStep)
	case a.Resolved:
		return resolvedBefore(t, r, a, op)
	}
	s, err := findStep(&t.View, r.Id, r.Attempt, false, op)
	if err != nil {
		return nil, err
	}
	if s == nil {
		any, err := latest(&t.View, r.Id, r.Attempt, false, 0)
		if err != nil {
			return nil, err
		}
		if any != nil || op.GetExact() {
			return nil, noStep(&t.View, r, op) // an unsatisfiable request fixes nothing
		}
	}
	a.Resolved = true
	if s != nil {
		a.Parent = s.Id
	}
	t.Put(t.K.Attempt(r.Id, a.Number), a.Encode())
	if err := refreshLinks(t, r, dir); err != nil {
		return nil, err
	}
	if s == nil {
		return kvtx.Refuse(noStep(&t.View, r, op)), nil // this answer is fixed: the attempt starts from nothing
	}
	return stepReply(s), nil
}

// resolvedBefore answers with the fixed parent.
func resolvedBefore(t *kvtx.Tx, r *record.Run, a *record.Attempt, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	if a.Parent == (record.StepID{}) {
		return nil, noStep(&t.View, r, op)
	}
	if op.GetExact() && op.GetStep() != a.Parent.Step {
		return nil, kvtx.Fail(moraine.Conflict, "resolve step", a.Parent.String(), "the attempt already continues from this step: it cannot continue from step %d", op.GetStep())
	}
	s, err := tree.MustStep(&t.View, a.Parent)
	if err != nil {
		return nil, err
	}
	if s.State != record.StepCommitted {
		return nil, kvtx.Fail(moraine.Lost, "resolve step", a.Parent.String(), "the attempt continues from this step, which was removed: start a new launch")
	}
	if s.Lost() {
		return nil, kvtx.Fail(moraine.Lost, "resolve step", a.Parent.String(), "the attempt continues from this step, which lost bytes: a new launch continues from the newest good checkpoint")
	}
	return stepReply(s), nil
}
