package ckptfaults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/localbucket"
)

// flipInBucket: a bit of each part of a step changes in the bucket, which has its only copy. The step
// before it is in the bucket, too, and the one after it on devices, which a restore finds. A read of the damaged
// step fails and names the object, a restore that may fall back gives the step before, and the service
// marks the step as lost.
func flipInBucket(ctx context.Context, w *world) error {
	var steps [3]stepKey // good, damaged, newest
	for i := range steps {
		steps[i] = stepKey{w.team.attempt, w.team.next}
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
		if i == 2 {
			break
		}
		if _, err := w.reader.WaitStep(ctx, steps[i].step, moraine.Object); err != nil {
			return fmt.Errorf("level object: %w", err)
		}
	}
	info, err := w.step(ctx, steps[1])
	if err != nil {
		return err
	}
	if err := w.evict(ctx, info); err != nil {
		return err
	}
	w.m.doom(steps[1]) // a poller may have opened it when it was the newest
	if err := w.flipObjects(ctx, info); err != nil {
		return err
	}
	if err := errors.Join(w.onlyInBucket(ctx, info, steps[0]), w.flipObjects(ctx, info)); err != nil { // as they were
		return err
	}
	if err := w.intact(ctx, steps[0], moraine.Object); err != nil {
		return err
	}
	return w.relaunch(ctx, launch{})
}

// step returns a step of the run.
func (w *world) step(ctx context.Context, k stepKey) (ckpt.StepInfo, error) {
	return ckpt.GetStep(ctx, w.admin.Client, client.StepKey{Run: w.reader.ID(), Attempt: k.attempt, Step: k.step})
}

// flipObjects flips a bit of the object of each part of a step.
func (w *world) flipObjects(ctx context.Context, s ckpt.StepInfo) error {
	for rank := range s.World {
		key := sha256.Sum256(fmt.Appendf(nil, "%s/%s/rank-%05d-of-%05d.safetensors", runPath[1:], s.Path, rank, s.World))
		if err := flipInFile(w.bucket.Disk(), path.Join(localbucket.Dir, "objects", hex.EncodeToString(key[:])), partBytes/2); err != nil {
			return err
		}
	}
	return nil
}

// onlyInBucket checks what restores see of a step that only the bucket has, damaged. good is the step
// before it.
func (w *world) onlyInBucket(ctx context.Context, bad ckpt.StepInfo, good stepKey) error {
	if err := w.damaged(ctx, bad); err != nil {
		return err
	}
	k, err := w.reader.Restorable(ctx, ckpt.ResolveOptions{Level: moraine.Object},
		func(k *ckpt.Checkpoint) error { return w.m.check(ctx, k, readTensor) },
		func(s ckpt.StepInfo, err error) { w.log("step %d skipped: %v", s.Step, moraine.KindOf(err)) })
	if err != nil {
		return fmt.Errorf("no step of the bucket is restored: %w", err)
	}
	defer k.Close()
	if got := keyOf(k.Info); got != good {
		return wrongf("attempt %d step %d is restored from the bucket, not step %d", got.attempt, got.step, good.step)
	}
	return w.lost(ctx, keyOf(bad))
}

// lost waits until the service has marked a step as lost.
func (w *world) lost(ctx context.Context, k stepKey) error {
	for {
		s, err := w.step(ctx, k)
		switch {
		case err == nil && s.State == ckpt.StepLost:
			w.m.isLost(k)
			return nil
		case err != nil && !retryable(err):
			return err
		case ctx.Err() != nil:
			return wrongf("attempt %d step %d, whose only copy is damaged, is not marked as lost: its state is %q", k.attempt, k.step, s.State)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// evict drops the stripes of a step.
func (w *world) evict(ctx context.Context, s ckpt.StepInfo) error {
	jobs, err := w.admin.Jobs().Queue(ctx, client.JobEvict, s.Dir)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j, err = w.admin.Jobs().Wait(ctx, j.ID, nil); err != nil || j.State != client.JobDone {
			return fmt.Errorf("eviction of step %d: %w, %+v", s.Step, err, j)
		}
	}
	for {
		attr, err := w.admin.Stat(ctx, fmt.Sprintf("%s/%s/rank-%05d-of-%05d.safetensors", runPath, s.Path, 0, s.World))
		if err != nil || attr.Evicted() {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// intact checks a step whose bytes come from a level.
func (w *world) intact(ctx context.Context, k stepKey, from moraine.Level) error {
	c, err := w.reader.Resolve(ctx, ckpt.ResolveOptions{Step: k.step, Exact: true, Read: ckpt.ReadOptions{From: from}})
	if err != nil {
		return err
	}
	defer c.Close()
	return w.m.check(ctx, c, readTensor)
}

// damaged checks that a read of a step fails, and that it names the object. A poller may have read the step
// between its eviction and the flip: then chunkservers have the right pieces in their memory, and have staged
// the files. So they restart, and the step is evicted again.
func (w *world) damaged(ctx context.Context, s ckpt.StepInfo) error {
	k := keyOf(s)
	served, err := w.servesDamaged(ctx, k)
	if err != nil || !served {
		return err
	}
	w.log("a poller has read step %d", k.step)
	for _, host := range w.c.Nodes() {
		if !strings.HasPrefix(host, "n") {
			continue
		}
		w.c.Kill(host)
		if err := w.c.Restart(host); err != nil {
			return err
		}
	}
	if err := w.evict(ctx, s); err != nil {
		return err
	}
	if served, err = w.servesDamaged(ctx, k); err == nil && served {
		err = wrongf("attempt %d step %d is read, though the only copy of it is damaged", k.attempt, k.step)
	}
	return err
}

// servesDamaged reports whether a step whose object is damaged is read all the same, with the right bytes. If
// not, the checkpoint names the object.
func (w *world) servesDamaged(ctx context.Context, k stepKey) (served bool, err error) {
	c, err := w.reader.Resolve(ctx, ckpt.ResolveOptions{Step: k.step, Exact: true})
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := w.m.check(ctx, c, readTensor); err == nil || !isDamage(err) {
		return err == nil, err
	}
	if !slices.ContainsFunc(c.BadRanges(), func(b ckpt.BadRange) bool { return b.Level == moraine.Object }) {
		return false, wrongf("the bad ranges of attempt %d step %d do not name the object: %v", k.attempt, k.step, c.BadRanges())
	}
	return false, nil
}

func isDamage(err error) bool { return errors.Is(err, moraine.Lost) || errors.Is(err, moraine.Corrupt) }
