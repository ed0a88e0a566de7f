package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// onlyNewest is a policy that keeps one step.
var onlyNewest = ckpt.Policy{{Level: moraine.Memory, KeepLast: 1}, {Level: moraine.NVMe, KeepLast: 1}}

// retentionWhileRestoring: the policy of the run removes old steps while a reader restores one of them,
// which stays.
func retentionWhileRestoring(ctx context.Context, w *world) (err error) {
	if err := w.team.commit(ctx, moments{}); err != nil {
		return err
	}
	k, err := w.reader.Resolve(ctx, ckpt.ResolveOptions{Step: w.team.next - 1, Exact: true})
	if err != nil {
		return err
	}
	defer k.Close()
	open := stepKey{k.Info.Attempt, k.Info.Step}
	defer w.m.forget(open) // the leader may have decided to remove it by the time that it is closed
	if err := ckpt.SetPolicy(ctx, w.admin.Client, w.reader.ID(), onlyNewest); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ckpt.SetPolicy(ctx, w.admin.Client, w.reader.ID(), nil)) }()
	removed := false
	for range 4 { // the leader applies the policy after each commit; a poller may just read the step
		passed := stepKey{w.team.attempt, w.team.next}
		for range 2 {
			w.forgetBut(open)
			if err := w.team.commit(ctx, moments{}); err != nil {
				return err
			}
		}
		w.forgetBut(open, stepKey{w.team.attempt, w.team.next - 1})
		if removed, err = w.removedSoon(ctx, passed); err != nil || removed {
			break
		}
	}
	if err != nil {
		return err
	}
	if !removed {
		return fmt.Errorf("the policy of the run removes nothing")
	}
	for range 3 {
		if err := w.m.check(ctx, k, readTensor); err != nil {
			return err
		}
	}
	if there, err := w.lists(ctx, open); err != nil || !there {
		return errors.Join(err, wrongf("a policy removed step %d, which is being restored", open.step))
	}
	return nil
}

// forgetBut forgets all steps but these.
func (w *world) forgetBut(keep ...stepKey) {
	for _, k := range w.m.mustBeThere() {
		if k != keep[0] && k != keep[len(keep)-1] {
			w.m.forget(k)
		}
	}
}

// removedSoon reports whether a step goes within some seconds.
func (w *world) removedSoon(ctx context.Context, k stepKey) (bool, error) {
	for range 100 {
		if there, err := w.lists(ctx, k); err != nil || !there {
			return err == nil, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false, nil
}

// lists reports whether a step is there, committed.
func (w *world) lists(ctx context.Context, k stepKey) (bool, error) {
	steps, err := ckpt.ListSteps(ctx, w.admin.Client, w.reader.ID(), false)
	for _, s := range steps {
		if s.Attempt == k.attempt && s.Step == k.step {
			return s.State == ckpt.StepCommitted, err
		}
	}
	return false, err
}
