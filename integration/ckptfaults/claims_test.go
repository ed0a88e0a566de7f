package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// Ranks of the two nodes have a tensor in common, which one of them stores for all. These faults end the
// node that has claimed it, or lose what is said about it.

// inMemoryAtTimes runs a fault under a policy that leaves its steps in memory, with one of two seeds. Otherwise
// they go to nvme.
func (w *world) inMemoryAtTimes(ctx context.Context, run func() error) error {
	if w.rng.IntN(2) == 0 {
		return run()
	}
	return w.inMemory(ctx, run)
}

// nodeNamed returns a node by name.
func (w *world) nodeNamed(name string) (*node, error) {
	for _, n := range w.nodes {
		if n.name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%q is no training node", name)
}

// holderDies: the agent that has claimed the tensor dies before it writes, before it has sealed its part, or
// after it, and another one goes on. Or its trainers die. Or no other agent comes, and the step is aborted for
// all ranks.
func holderDies(ctx context.Context, w *world) error {
	return w.inMemoryAtTimes(ctx, func() error {
		defer w.replicates(ofStep)()
		switch moment := w.rng.IntN(5); moment {
		case 0, 1:
			return w.holderDiesAt(ctx, &caught{fits: claims, applied: true}, moment == 1)
		case 2:
			return w.holderDiesAt(ctx, &caught{fits: w.trap.seals}, false)
		case 3:
			return w.holderDiesAt(ctx, &caught{fits: w.trap.seals, applied: true}, false)
		}
		return w.trainersOfHolderDie(ctx)
	})
}

// holderDiesAt kills the agent that sends a request, at that moment. With away the next one starts when the
// step has ended.
func (w *world) holderDiesAt(ctx context.Context, c *caught, away bool) error {
	failed, err := w.claimsFailed()
	if err != nil {
		return err
	}
	if away {
		w.team.sealTimeout = 3 * time.Second
		defer func() { w.team.sealTimeout = time.Minute }()
	}
	w.trap.catch(c)
	defer w.trap.end()
	k, errs, err := w.team.save(ctx, moments{sealed: func([]*ckpt.Part) error {
		defer c.release()
		from, err := w.claimant(ctx, c, failed)
		if err != nil {
			return err
		}
		if from == "" {
			away = false
			return nil
		}
		n, err := w.nodeNamed(from)
		if err != nil {
			return err
		}
		w.log("%s dies (request applied: %v, away: %v)", n.name, c.applied, away)
		n.kill()
		if away {
			if _, err := w.reader.WaitStep(ctx, w.team.next-1, moraine.Memory); moraine.KindOf(err) != moraine.Aborted {
				return fmt.Errorf("a step whose part is on a node that is away: %w", err)
			}
		}
		return n.start()
	}})
	switch {
	case err != nil:
		return err
	case !away && errors.Join(errs...) != nil:
		return fmt.Errorf("attempt %d step %d: %w", k.attempt, k.step, errors.Join(errs...))
	case !away:
		return w.storedOnce(ctx, k, failed)
	}
	w.team.sealTimeout = time.Minute
	if err := w.team.aborted(k, errs); err != nil {
		return err
	}
	return w.shareOnce(ctx)
}

// claimant returns the node whose request is stopped. It is empty if a part has given up its claim: this
// machine is too busy for the moment to come.
func (w *world) claimant(ctx context.Context, c *caught, failed float64) (from string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for now := failed; now == failed && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			now, _ = w.claimsFailed()
		}
		cancel(errGivenUp)
	}()
	from, err = c.wait(ctx)
	if err != nil && context.Cause(ctx) == errGivenUp {
		w.log("a claim was given up")
		return "", nil
	}
	return from, err
}

var errGivenUp = errors.New("a part has given up its claim")

// shareOnce saves a step without a fault.
func (w *world) shareOnce(ctx context.Context) error {
	failed, err := w.claimsFailed()
	if err != nil {
		return err
	}
	if err := w.team.commit(ctx, moments{}); err != nil {
		return err
	}
	return w.storedOnce(ctx, stepKey{w.team.attempt, w.team.next - 1}, failed)
}

// trainersOfHolderDie: the trainers of the node that has claimed die while its agent stops at the claim.
func (w *world) trainersOfHolderDie(ctx context.Context) error {
	failed, err := w.claimsFailed()
	if err != nil {
		return err
	}
	c := w.trap.catch(&caught{fits: claims, applied: true})
	defer w.trap.end()
	if err := w.team.commit(ctx, moments{sealed: func([]*ckpt.Part) error {
		defer c.release()
		from, err := w.claimant(ctx, c, failed)
		if err != nil {
			return err
		}
		w.log("the trainers of %q die", from)
		for _, tr := range w.team.ranks {
			if w.node(tr.rank).name == from {
				tr.die()
			}
		}
		return nil
	}}); err != nil {
		return err
	}
	k := stepKey{w.team.attempt, w.team.next - 1}
	if err := w.relaunch(ctx, launch{}); err != nil {
		return err
	}
	if w.team.parent != k {
		return wrongf("the next launch continues from attempt %d step %d, not from attempt %d step %d", w.team.parent.attempt, w.team.parent.step, k.attempt, k.step)
	}
	return w.storedOnce(ctx, k, failed)
}

// claimIsLost: the answer to the first claim is lost after the service has applied it, and with it the leader at
// times. Or no claim is ever answered: then each node stores the tensor.
func claimIsLost(ctx context.Context, w *world) error {
	return w.inMemoryAtTimes(ctx, func() error {
		defer w.replicates(ofStep)()
		failed, err := w.claimsFailed()
		if err != nil {
			return err
		}
		if w.rng.IntN(3) == 0 {
			return w.claimsUnanswered(ctx, failed)
		}
		leaderDies := w.rng.IntN(2) == 0
		c := w.trap.catch(&caught{fits: claims, applied: true, lost: true})
		defer w.trap.end()
		if err := w.team.commit(ctx, moments{sealed: func([]*ckpt.Part) error {
			defer c.release()
			if from, err := w.claimant(ctx, c, failed); err != nil || from == "" || !leaderDies {
				return err
			}
			leader := w.c.Leader()
			if leader == "" {
				return errors.New("no metadata server leads")
			}
			w.log("%s dies", leader)
			w.c.Kill(leader)
			c.release()
			return w.c.Restart(leader)
		}}); err != nil {
			return err
		}
		return w.storedOnce(ctx, stepKey{w.team.attempt, w.team.next - 1}, failed)
	})
}

func (w *world) claimsUnanswered(ctx context.Context, failed float64) error {
	w.log("no claim is answered")
	w.trap.mute.Store(true)
	defer w.trap.mute.Store(false)
	if err := w.team.commit(ctx, moments{}); err != nil {
		return err
	}
	now, err := w.claimsFailed()
	if err != nil {
		return err
	}
	if now == failed {
		return errors.New("no agent has claimed anything")
	}
	return w.storedOnce(ctx, stepKey{w.team.attempt, w.team.next - 1}, failed)
}

// oldLaunchHasClaimed: a rank of a launch has claimed and stored the tensor, the others have sealed nothing, and
// the next launch saves the same bytes as the same step. Its ranks leave nothing to the old ones.
func oldLaunchHasClaimed(ctx context.Context, w *world) error {
	return w.inMemoryAtTimes(ctx, func() error {
		same := ofStep(stepKey{w.team.attempt, w.team.next})
		defer w.replicates(func(stepKey) uint64 { return same })()
		failed, err := w.claimsFailed()
		if err != nil {
			return err
		}
		old, fenced := w.team, make(chan struct{})
		fence := sync.OnceFunc(func() { close(fenced) })
		c := w.trap.catch(&caught{fits: claims, applied: true})
		defer w.trap.end()
		saved := make(chan error, 1)
		go func() { saved <- old.saveLate(ctx, fenced) }()
		from, err := w.claimant(ctx, c, failed)
		c.release()
		if err == nil {
			w.log("%q has claimed", from)
			err = w.relaunch(ctx, launch{keep: true, world: 2 + w.rng.Uint32N(2)})
		}
		fence()
		err = errors.Join(err, <-saved)
		old.die()
		if err != nil {
			return err
		}
		return w.shareOnce(ctx)
	})
}

// saveLate saves a step that must not be committed: only the first rank of the second node seals it before fenced is
// closed.
func (t *team) saveLate(ctx context.Context, fenced <-chan struct{}) error {
	k, errs, err := t.save(ctx, moments{staged: func(tr *trainer) {
		if tr.rank != 1 {
			<-fenced
		}
	}})
	for _, e := range errs {
		if e == nil && err == nil {
			err = wrongf("step %d of the fenced attempt %d is committed", k.step, k.attempt)
		}
	}
	return err
}
