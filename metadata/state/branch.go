package state

import (
	"math"

	"github.com/morainefs/moraine"
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
		case !a.resolved:
			at, limit = at-1, math.MaxUint64
		case a.parent.attempt < at: // 0 where it has none
			at, limit = a.parent.attempt, a.parent.step
		default:
			return &moraine.Error{Op: "branch", Ref: a.parent.String(), Kind: moraine.Corrupt}
		}
	}
	return nil
}

// latest returns the greatest committed step of a branch that is at level or
// safer and still there; nil where there is none.
func (v *view) latest(run moraine.RunID, from uint32, own bool, level moraine.Level) (*step, error) {
	return v.latestUpTo(run, from, own, level, stepID{attempt: math.MaxUint32})
}

// latestUpTo is latest of what a branch had before one of its steps.
func (v *view) latestUpTo(run moraine.RunID, from uint32, own bool, level moraine.Level, before stepID) (*step, error) {
	var found *step
	err := v.branch(run, from, own, func(attempt uint32, limit uint64) (bool, error) {
		switch {
		case attempt > before.attempt || attempt == before.attempt && before.step == 0:
			return true, nil
		case attempt == before.attempt:
			limit = min(limit, before.step-1)
		}
		var bad error
		first := v.k.runCommit(stepID{run, attempt, limit})
		end := prefixEnd(be32(be64(v.k.key(tabRunCommit, 12), uint64(run)), attempt))
		err := v.r.Scan(first, end, func(key, _ []byte) bool {
			id := stepOfKey(key)
			id.step = ^id.step
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
func (v *view) standing(id stepID, level moraine.Level) (*step, error) {
	s, err := v.present(id)
	if err != nil || s == nil || s.lost() || s.level < level {
		return nil, err
	}
	return s, nil
}

// present returns a committed step whose directory has not been removed, lost or not;
// nil otherwise.
func (v *view) present(id stepID) (*step, error) {
	s, err := v.mustStep(id)
	if err != nil || s.state != stepCommitted {
		return nil, err
	}
	dir, err := v.inode(s.dir)
	if moraineKind(err) == moraine.NotFound {
		return nil, nil
	}
	if err != nil || dir.nlink == 0 {
		return nil, err
	}
	return s, nil
}

// exactly returns the committed step of that number on a branch, the latest if
// several attempts saved it; nil where there is none.
func (v *view) exactly(run moraine.RunID, from uint32, own bool, number uint64, level moraine.Level) (*step, error) {
	var found *step
	err := v.branch(run, from, own, func(attempt uint32, limit uint64) (bool, error) {
		if number > limit {
			return true, nil
		}
		id := stepID{run, attempt, number}
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
func (v *view) findStep(run moraine.RunID, from uint32, own bool, op *wire.ResolveStep) (*step, error) {
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
		from = r.attempt
	}
	if from > r.attempt {
		return nil, fail(moraine.InvalidArgument, "resolve step", moraine.InodeID(r.id).String(), "attempt %d is the latest", r.attempt)
	}
	s, err := v.findStep(r.id, from, true, op)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, v.noStep(r, op)
	}
	return stepReply(s), nil
}

// noStep is the error where nothing fits.
func (v *view) noStep(r *run, op *wire.ResolveStep) error {
	ref := moraine.InodeID(op.GetRun()).String()
	if op.GetExact() {
		s, err := v.newestPresent(r, op.GetStep())
		if err != nil {
			return err
		}
		if s != nil && s.lost() {
			return fail(moraine.Lost, "resolve step", s.id.String(), "bytes of it are lost: moraine ckpt show names them")
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
	id := stepID{run: moraine.RunID(op.GetRun()), attempt: op.GetAttempt()}
	if id.attempt == 0 || op.GetBefore() != nil {
		return nil, fail(moraine.InvalidArgument, "resolve step", moraine.InodeID(id.run).String(), "to fix an attempt's parent, name the attempt, and no step before which it was")
	}
	r, dir, err := t.presentRun("resolve step", id)
	if err != nil {
		return nil, err
	}
	a, err := t.attempt(r.id, r.attempt)
	if err != nil {
		return nil, err
	}
	if a.resolved {
		return t.resolvedBefore(r, a, op)
	}
	s, err := t.findStep(r.id, r.attempt, false, op)
	if err != nil {
		return nil, err
	}
	if s == nil {
		any, err := t.latest(r.id, r.attempt, false, 0)
		if err != nil {
			return nil, err
		}
		if any != nil || op.GetExact() {
			return nil, t.noStep(r, op) // nothing is fixed by a wish that cannot be met
		}
	}
	a.resolved = true
	if s != nil {
		a.parent = s.id
	}
	t.put(t.k.attempt(r.id, a.number), a.encode())
	if err := m.refreshLinks(t, r, dir); err != nil {
		return nil, err
	}
	if s == nil {
		return refuse(t.noStep(r, op)), nil // kept: the attempt starts from nothing
	}
	return stepReply(s), nil
}

// resolvedBefore answers with the parent that is fixed.
func (t *tx) resolvedBefore(r *run, a *attempt, op *wire.ResolveStep) (*wire.MetaResponse, error) {
	if a.parent == (stepID{}) {
		return nil, t.noStep(r, op)
	}
	if op.GetExact() && op.GetStep() != a.parent.step {
		return nil, fail(moraine.Conflict, "resolve step", a.parent.String(), "the attempt goes on from it already, not from step %d", op.GetStep())
	}
	s, err := t.mustStep(a.parent)
	if err != nil {
		return nil, err
	}
	if s.state != stepCommitted {
		return nil, fail(moraine.Lost, "resolve step", a.parent.String(), "the attempt's parent was removed")
	}
	if s.lost() {
		return nil, fail(moraine.Lost, "resolve step", a.parent.String(), "the attempt goes on from it, and bytes of it are lost: a new launch goes on from the newest good checkpoint")
	}
	return stepReply(s), nil
}
