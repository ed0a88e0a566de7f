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
	open := keyOf(k.Info)
	defer w.m.forget(open) // the leader may have decided to remove it by the time that it is closed
	if err := ckpt.SetPolicy(ctx, w.admin.Client, w.reader.ID(), onlyNewest); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ckpt.SetPolicy(ctx, w.admin.Client, w.reader.ID(), nil)) }()
	removed := false
	for range 4 { // the leader applies the policy after each commit; a poller may just read the step
		before, err := w.listed(ctx)
		if err != nil {
			return err
		}
		for range 2 {
			w.forgetBut(open)
			if err := w.team.commit(ctx, moments{}); err != nil {
				return err
			}
		}
		w.forgetBut(open, stepKey{w.team.attempt, w.team.next - 1})
		if removed, err = w.removedSoon(ctx, before); err != nil {
			return err
		}
		if removed {
			break
		}
	}
	if !removed {
		return fmt.Errorf("the policy of the run removes nothing")
	}
	for range 3 {
		if err := w.m.check(ctx, k, readTensor); err != nil {
			return err
		}
	}
	listed, err := w.listed(ctx)
	if err == nil && !listed[open] {
		err = wrongf("a policy removed step %d, which is being restored", open.step)
	}
	return err
}

// forgetBut forgets all steps but these.
func (w *world) forgetBut(keep ...stepKey) {
	for _, k := range w.m.mustBeThere() {
		if k != keep[0] && k != keep[len(keep)-1] {
			w.m.forget(k)
		}
	}
}

// removedSoon reports whether any of some steps goes within seconds.
func (w *world) removedSoon(ctx context.Context, before map[stepKey]bool) (bool, error) {
	for range 100 {
		listed, err := w.listed(ctx)
		if err != nil {
			return false, err
		}
		for k := range before {
			if !listed[k] {
				w.log("attempt %d step %d", k.attempt, k.step)
				return true, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false, nil
}

// listed returns the committed steps of the run.
func (w *world) listed(ctx context.Context) (map[stepKey]bool, error) {
	steps, err := ckpt.ListSteps(ctx, w.admin.Client, w.reader.ID(), false)
	listed := map[stepKey]bool{}
	for _, s := range steps {
		if s.State == ckpt.StepCommitted {
			listed[keyOf(s)] = true
		}
	}
	return listed, err
}
