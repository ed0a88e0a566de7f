package state

import (
	"math"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// The branch of an attempt is what it goes on from: its own steps, those of its
// parent's attempt up to the parent, and so on. Where an attempt has not fixed
// its parent yet, every step of the attempt before it is on the branch. Steps
// that a later attempt went back behind are abandoned: they are on no branch
// that is alive.

// branch calls fn with each attempt of a branch and the greatest step of it
// that is on the branch, latest first, until fn returns false. own is whether
// the attempt's own steps count.
func (v *view) branch(run moraine.RunID, from uint32, own bool, fn func(attempt uint32, limit uint64) (more bool, err error)) error {
	limit := uint64(math.MaxUint64)
	for at := from; at > 0; {
		if own || at != from {
			if more, err := fn(at, limit); err != nil || !more {
				return err
			}
		}
		a, err := v.attempt(run, at)
		switch {
		case err != nil:
			return err
		case !a.Resolved:
			at, limit = at-1, math.MaxUint64
		case a.Parent.Attempt < at: // 0 where it has none
			at, limit = a.Parent.Attempt, a.Parent.Step
		default:
			return &moraine.Error{Op: "branch", Ref: a.Parent.String(), Kind: moraine.Corrupt}
		}
	}
	return nil
}

// latest returns the greatest committed step of a branch that is at level or
// safer and still there; nil where there is none.
func (v *view) latest(run moraine.RunID, from uint32, own bool, level moraine.Level) (*record.Step, error) {
	return v.latestUpTo(run, from, own, level, record.StepID{Attempt: math.MaxUint32})
}

// latestUpTo is latest of what a branch had before one of its steps.
func (v *view) latestUpTo(run moraine.RunID, from uint32, own bool, level moraine.Level, before record.StepID) (*record.Step, error) {
	var found *record.Step
	err := v.branch(run, from, own, func(attempt uint32, limit uint64) (bool, error) {
		switch {
		case attempt > before.Attempt || attempt == before.Attempt && before.Step == 0:
			return true, nil
		case attempt == before.Attempt:
			limit = min(limit, before.Step-1)
		}
		var bad error
		first := v.k.runCommit(record.StepID{Run: run, Attempt: attempt, Step: limit})
		end := prefixEnd(record.Be32(record.Be64(v.k.key(record.TabRunCommit, 12), uint64(run)), attempt))
		err := v.r.Scan(first, end, func(key, _ []byte) bool {
			id := stepOfKey(key)
			id.Step = ^id.Step
			found, bad = v.standing(id, level)
			return bad == nil && found == nil
		})
		if err == nil {
			err = bad
		}
		return found == nil, err
	})
	return found, err
}

// standing returns a committed step if it is at level or safer, has all its bytes, and
// its directory has not been removed; nil otherwise.
func (v *view) standing(id record.StepID, level moraine.Level) (*record.Step, error) {
	s, err := v.present(id)
	if err != nil || s == nil || s.Lost() || s.Level < level {
		return nil, err
	}
	return s, nil
}

// present returns a committed step whose directory has not been removed, lost or not;
// nil otherwise.
func (v *view) present(id record.StepID) (*record.Step, error) {
	s, err := v.mustStep(id)
	if err != nil || s.State != record.StepCommitted {
		return nil, err
	}
	dir, err := v.inode(s.Dir)
	if moraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || dir.Nlink == 0 {
		return nil, err
	}
	return s, nil
}

// exactly returns the committed step of that number on a branch, the latest if
// several attempts saved it; nil where there is none.
func (v *view) exactly(run moraine.RunID, from uint32, own bool, number uint64, level moraine.Level) (*record.Step, error) {
	var found *record.Step
	err := v.branch(run, from, own, func(attempt uint32, limit uint64) (bool, error) {
		if number > limit {
			return true, nil
		}
		id := record.StepID{Run: run, Attempt: attempt, Step: number}
		_, ok, err := v.r.Get(v.k.runCommit(id))
		if err != nil || !ok {
			return err == nil, err
		}
		found, err = v.standing(id, level)
		return found == nil, err
	})
	return found, err
}

// findStep answers a ResolveStep from a branch; nil where nothing fits.
func (v *view) findStep(run moraine.RunID, from uint32, own bool, op *wire.ResolveStep) (*record.Step, error) {
	level := moraine.Level(min(op.GetLevel(), 255))
	if op.GetExact() {
		return v.exactly(run, from, own, op.GetStep(), level)
	}
	if b := op.GetBefore(); b != nil {
		return v.latestUpTo(run, from, own, level, stepFromWire(b))
	}
	return v.latest(run, from, own, level)
}

// readResolve answers which checkpoint an attempt goes on from, as of now.
func (v *view) readResolve(sc scope, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	r, _, err := v.runInScope(sc, "resolve step", moraine.RunID(op.GetRun()))
	if err != nil {
		return nil, err
	}
	from := op.GetAttempt()
	if from == 0 {
		from = r.Attempt
	}
	if from > r.Attempt {
		return nil, fail(moraine.InvalidArgument, "resolve step", moraine.InodeID(r.Id).String(), "attempt %d is the latest", r.Attempt)
	}
	s, err := v.findStep(r.Id, from, true, op)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, v.noStep(r, op)
	}
	return stepReply(s), nil
}

// noStep is the error where nothing fits.
func (v *view) noStep(r *record.Run, op *wire.ResolveStep) error {
	ref := moraine.InodeID(op.GetRun()).String()
	if op.GetExact() {
		s, err := v.newestPresent(r, op.GetStep())
		if err != nil {
			return err
		}
		if s != nil && s.Lost() {
			return fail(moraine.Lost, "resolve step", s.Id.String(), "bytes of it are lost: moraine ckpt show names them")
		}
		return fail(moraine.NotFound, "resolve step", ref, "the branch has no committed step %d of that level", op.GetStep())
	}
	return fail(moraine.NotFound, "resolve step", ref, "the branch has no committed step of that level")
}

// resolveStep fixes what the present attempt goes on from: the first answer is
// the parent of the attempt, and every later one the same, for all its ranks,
// also where it is that there is nothing.
func (m *Machine) resolveStep(t *tx, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	t.ignoresQuota = true // a full quota keeps nobody from restoring; the links are few
	id := record.StepID{Run: moraine.RunID(op.GetRun()), Attempt: op.GetAttempt()}
	if id.Attempt == 0 || op.GetBefore() != nil {
		return nil, fail(moraine.InvalidArgument, "resolve step", moraine.InodeID(id.Run).String(), "to fix an attempt's parent, name the attempt, and no step before which it was")
	}
	r, dir, err := t.presentRun("resolve step", id)
	if err != nil {
		return nil, err
	}
	a, err := t.attempt(r.Id, r.Attempt)
	if err != nil {
		return nil, err
	}
	if a.Resolved {
		return t.resolvedBefore(r, a, op)
	}
	s, err := t.findStep(r.Id, r.Attempt, false, op)
	if err != nil {
		return nil, err
	}
	if s == nil {
		any, err := t.latest(r.Id, r.Attempt, false, 0)
		if err != nil {
			return nil, err
		}
		if any != nil || op.GetExact() {
			return nil, t.noStep(r, op) // nothing is fixed by a wish that cannot be met
		}
	}
	a.Resolved = true
	if s != nil {
		a.Parent = s.Id
	}
	t.put(t.k.attempt(r.Id, a.Number), a.Encode())
	if err := m.refreshLinks(t, r, dir); err != nil {
		return nil, err
	}
	if s == nil {
		return refuse(t.noStep(r, op)), nil // kept: the attempt starts from nothing
	}
	return stepReply(s), nil
}

// resolvedBefore answers with the parent that is fixed.
func (t *tx) resolvedBefore(r *record.Run, a *record.Attempt, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	if a.Parent == (record.StepID{}) {
		return nil, t.noStep(r, op)
	}
	if op.GetExact() && op.GetStep() != a.Parent.Step {
		return nil, fail(moraine.Conflict, "resolve step", a.Parent.String(), "the attempt goes on from it already, not from step %d", op.GetStep())
	}
	s, err := t.mustStep(a.Parent)
	if err != nil {
		return nil, err
	}
	if s.State != record.StepCommitted {
		return nil, fail(moraine.Lost, "resolve step", a.Parent.String(), "the attempt's parent was removed")
	}
	if s.Lost() {
		return nil, fail(moraine.Lost, "resolve step", a.Parent.String(), "the attempt goes on from it, and bytes of it are lost: a new launch goes on from the newest good checkpoint")
	}
	return stepReply(s), nil
}
