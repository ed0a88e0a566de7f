package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// anyRank draws a rank of the team.
func (w *world) anyRank() *trainer { return w.team.ranks[w.rng.IntN(len(w.team.ranks))] }

// aborted checks that Wait of every rank that lives failed because the step is aborted.
func (t *team) aborted(k stepKey, errs []error) error {
	for i, tr := range t.ranks {
		if !tr.dead && moraine.KindOf(errs[i]) != moraine.Aborted {
			return fmt.Errorf("rank %d gets %w for attempt %d step %d, which cannot be committed", tr.rank, errs[i], k.attempt, k.step)
		}
	}
	return nil
}

// trainerDiesStaging: a trainer dies before it has sealed. The step is aborted, the others learn it.
func trainerDiesStaging(ctx context.Context, w *world) error {
	victim := w.anyRank()
	k, errs, err := w.team.save(ctx, moments{staged: func(tr *trainer) {
		if tr == victim {
			tr.die()
		}
	}})
	if err == nil {
		err = w.team.aborted(k, errs)
	}
	return errors.Join(err, w.relaunch(ctx, launch{}))
}

// trainerDiesAfterLocal: a trainer dies as soon as Wait(local) has returned. Its step is committed, and
// a new launch, of another number of ranks, continues from it.
func trainerDiesAfterLocal(ctx context.Context, w *world) error {
	victim := w.anyRank()
	if err := w.team.commit(ctx, moments{sealed: func([]*ckpt.Part) error {
		victim.die()
		return nil
	}}); err != nil {
		return err
	}
	next := w.team.next
	if err := w.relaunch(ctx, launch{world: 2 + w.rng.Uint32N(2)}); err != nil {
		return err
	}
	if w.team.next != next {
		return wrongf("the next launch continues with step %d, not %d", w.team.next, next)
	}
	return nil
}

// agentDies: an agent dies while it writes sealed parts. The next one on the node writes them.
func agentDies(ctx context.Context, w *world) error {
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	pause := time.Duration(w.rng.IntN(30)) * time.Millisecond
	return w.team.commit(ctx, moments{sealed: func([]*ckpt.Part) error {
		time.Sleep(pause)
		n.kill()
		return n.start()
	}})
}

// rankStops: a rank does nothing for a while, as after SIGSTOP; its connections stay. If that is for
// longer than the seal timeout, the step is aborted for all ranks.
func rankStops(ctx context.Context, w *world) error {
	victim := w.anyRank()
	w.team.sealTimeout = time.Second
	defer func() { w.team.sealTimeout = time.Minute }()
	pause := time.Duration(w.rng.IntN(4000)) * time.Millisecond
	k, errs, err := w.team.save(ctx, moments{staged: func(tr *trainer) {
		if tr == victim {
			tr.nap.Begin()
			time.Sleep(pause)
			tr.nap.End()
		}
	}})
	if err != nil || errors.Join(errs...) == nil {
		return err
	}
	w.log("step aborted after %v", pause)
	return w.team.aborted(k, errs)
}

// oldAttemptWrites: the ranks of an attempt do not know that the next one has begun, and save on.
// Nothing of that is committed.
func oldAttemptWrites(ctx context.Context, w *world) error {
	old := w.team
	if err := w.relaunch(ctx, launch{keep: true}); err != nil {
		return err
	}
	defer old.die()
	saved := make(chan error, 1)
	go func() {
		k, errs, err := old.save(ctx, moments{})
		for _, e := range errs {
			if e == nil && err == nil {
				err = wrongf("step %d of the fenced attempt %d is committed", k.step, k.attempt)
			}
		}
		saved <- err
	}()
	err := w.team.commit(ctx, moments{})
	return errors.Join(err, <-saved)
}

// olderLaunchOpensLate: a rank of an older launch opens the run for the first time after a later launch
// did. It is refused, and the attempt continues.
func olderLaunchOpensLate(ctx context.Context, w *world) error {
	if err := w.relaunch(ctx, launch{}); err != nil {
		return err
	}
	tr, err := w.open(ctx, w.restart-1, w.rng.Uint32N(2), uint32(len(w.team.ranks)))
	if err == nil {
		tr.die()
		return wrongf("an older launch opened the run as attempt %d", tr.run.Attempt())
	}
	if moraine.KindOf(err) != moraine.Fenced {
		return fmt.Errorf("an older launch gets %w", err)
	}
	return w.team.commit(ctx, moments{})
}

// rollback: a launch goes back behind some steps, and saves steps of these numbers again. The earlier
// ones stay, and never become latest again.
func rollback(ctx context.Context, w *world) error {
	from := w.team.next
	for range 3 {
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
	}
	if err := w.relaunch(ctx, launch{from: from + w.rng.Uint64N(2)}); err != nil {
		return err
	}
	for range 1 + w.rng.IntN(3) {
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
	}
	return nil
}

// removalWhileRestoring: old steps are removed while a reader restores one of them, which stays.
func removalWhileRestoring(ctx context.Context, w *world) error {
	for range 2 {
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
	}
	k, err := w.reader.Resolve(ctx, ckpt.ResolveOptions{Step: w.team.next - 2, Exact: true})
	if err != nil {
		return err
	}
	defer k.Close()
	removed := make(chan error, 1)
	go func() { removed <- w.removeOld(ctx, keyOf(k.Info)) }()
	for range 3 {
		if err := w.m.check(ctx, k, readTensor); err != nil {
			return errors.Join(err, <-removed)
		}
	}
	if err := <-removed; err != nil {
		return err
	}
	return w.m.check(ctx, k, readTensor)
}

// removeOld removes all steps but the newest. The removals of open, and of the step from which the attempt
// continues, must be refused.
func (w *world) removeOld(ctx context.Context, open stepKey) error {
	for _, k := range w.m.mustBeThere() {
		if k == (stepKey{w.team.attempt, w.team.next - 1}) {
			continue
		}
		refused := k == open || k == w.team.parent
		if !refused {
			w.m.forget(k)
		}
		_, err := rawclient.Of(w.admin).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
			Key: &wire.StepKey{Run: uint64(w.reader.ID()), Attempt: k.attempt, Step: k.step}}}})
		switch {
		case k == open && moraine.KindOf(err) != moraine.Busy:
			return wrongf("the removal of a step that is being restored gets %v", err)
		case k == w.team.parent && err == nil:
			return wrongf("the step from which attempt %d continues was removed", w.team.attempt)
		case !refused && err != nil && moraine.KindOf(err) != moraine.Busy: // a poller reads it
			return fmt.Errorf("remove attempt %d step %d: %w", k.attempt, k.step, err)
		}
	}
	return nil
}

// clockBack: the wall clocks of the metadata servers and of the training nodes go back during a save.
func clockBack(ctx context.Context, w *world) error {
	back := time.Duration(1+w.rng.IntN(240)) * time.Second
	return w.team.commit(ctx, moments{
		staged: func(*trainer) { w.hands.Set(-back) },
	})
}
