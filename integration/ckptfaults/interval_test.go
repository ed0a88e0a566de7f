package ckptfaults_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
)

// never is an interval of level nvme that no step of a schedule meets.
const never = 1 << 40

// setEvery sets a policy that brings the steps whose number it divides to nvme, and leaves the others in memory.
// 0: no policy.
func (w *world) setEvery(ctx context.Context, every uint64) error {
	var p ckpt.Policy
	if every > 0 {
		p = ckpt.Policy{{Level: moraine.NVMe, Every: every}}
	}
	w.every = every
	return ckpt.SetPolicy(ctx, w.admin.Client, w.reader.ID(), p)
}

// stays reports whether the policy leaves a step in memory.
func (w *world) stays(step uint64) bool { return w.every > 0 && step%w.every != 0 }

// floor is the level that a step must have so that a launch continues from it.
func (w *world) floor() moraine.Level {
	if w.every > 0 {
		return moraine.Memory
	}
	return moraine.NVMe
}

// inMemory runs a fault whose steps stay in memory. Afterwards the newest one rises: it is whole.
func (w *world) inMemory(ctx context.Context, run func() error) error {
	w.log("steps stay in memory")
	if err := w.setEvery(ctx, never); err != nil {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	s, err := w.reader.Latest(ctx, moraine.Memory)
	if err != nil {
		return err
	}
	if !s.StaysInMemory {
		return wrongf("attempt %d step %d does not stay in memory: it is at level %v", s.Attempt, s.Step, s.Level)
	}
	w.log("attempt %d step %d is at level %v, %d of %d files below nvme", s.Attempt, s.Step, s.Level, s.BelowNVMe, s.Files)
	if err := w.whole(ctx, keyOf(s)); err != nil {
		return err
	}
	if err := errors.Join(w.rise(ctx, keyOf(s)), w.setEvery(ctx, 0)); err != nil {
		return err
	}
	return w.onDevices(ctx, keyOf(s))
}

// onDevices kills many hosts, or all, after the newest step has risen: its bytes are on their devices. Steps that are
// only in memory may be lost.
func (w *world) onDevices(ctx context.Context, k stepKey) error {
	hosts := w.chunkservers()
	hosts = hosts[:len(victims)+1+w.rng.IntN(len(hosts)-len(victims))]
	w.m.doomUndurable()
	w.log("%d hosts die", len(hosts))
	w.c.Kill(hosts...)
	if err := w.c.Restart(hosts...); err != nil {
		return err
	}
	for {
		err := w.whole(ctx, k)
		if err == nil || !retryable(err) || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// whole loads a step of the present branch, wherever it is.
func (w *world) whole(ctx context.Context, k stepKey) error {
	c, err := w.reader.Resolve(ctx, ckpt.ResolveOptions{Step: k.step, Exact: true, Level: moraine.Memory})
	if err != nil {
		return fmt.Errorf("attempt %d step %d: %w", k.attempt, k.step, err)
	}
	defer c.Close()
	if got := keyOf(c.Info); got != k {
		return wrongf("step %d is that of attempt %d, not %d", k.step, got.attempt, k.attempt)
	}
	return w.m.check(ctx, c, readTensor)
}

// rise waits for level nvme of a step of the present branch, which must be there from then on.
func (w *world) rise(ctx context.Context, k stepKey) error {
	s, err := w.reader.WaitStep(ctx, k.step, moraine.NVMe)
	if err != nil {
		return fmt.Errorf("attempt %d step %d rises: %w", k.attempt, k.step, err)
	}
	if keyOf(s) != k || s.StaysInMemory {
		return wrongf("attempt %d step %d has risen, and is said to be %+v", k.attempt, k.step, s)
	}
	w.m.committed(k)
	return nil
}

// underPolicy are the faults that are met by steps that stay in memory.
var underPolicy = []fault{
	calm,
	{"a trainer dies after Wait(local)", trainerDiesAfterLocal},
	{"an agent dies while it flushes", agentDies},
	{"the metadata leader dies", leaderDies},
	{"the memory of chunkservers is lost", memoryIsLost},
	{"a rank stops", rankStops},
	{"an old attempt keeps writing", oldAttemptWrites},
	{"a rollback saves the same steps", rollback},
	{"a bit flips in the arenas", flipInArenas},
	{"bits flip in the memory of chunkservers", flipInMemory},
	{"the wall clock is set back", clockBack},
}

// stepsStayInMemory: the policy leaves the steps of another fault in memory.
func stepsStayInMemory(ctx context.Context, w *world) error {
	f := underPolicy[w.rng.IntN(len(underPolicy))]
	w.log("%s", f.name)
	return w.inMemory(ctx, func() error {
		if err := w.team.commit(ctx, moments{}); err != nil { // a fault may abort its own step
			return err
		}
		return f.run(ctx, w)
	})
}

// hostsDieWithSteps: the policy brings one step to nvme, and leaves two in memory when hosts are killed. These two
// are whole, unless a stripe has lost too much: then both are lost, by name, and the run continues from the
// one at nvme.
func hostsDieWithSteps(ctx context.Context, w *world) error {
	for w.team.next < 3 { // whose multiples are not the next two
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
	}
	if err := w.setEvery(ctx, w.team.next); err != nil {
		return err
	}
	var steps [3]stepKey
	for i := range steps {
		steps[i] = stepKey{w.team.attempt, w.team.next}
		if err := w.team.commit(ctx, moments{}); err != nil {
			return err
		}
	}
	for i, k := range steps {
		s, err := w.step(ctx, k)
		if err != nil {
			return err
		}
		if stays := i > 0; s.StaysInMemory != stays || (s.Level < moraine.NVMe) != stays {
			return wrongf("attempt %d step %d is at level %v: stays in memory: %v", k.attempt, k.step, s.Level, s.StaysInMemory)
		}
	}
	whole, err := w.killHosts(ctx, steps)
	if err != nil {
		return err
	}
	if err := w.relaunch(ctx, launch{}); err != nil {
		return err
	}
	if w.team.parent != whole {
		return wrongf("the next launch continues from attempt %d step %d; the newest whole one is step %d", w.team.parent.attempt, w.team.parent.step, whole.step)
	}
	return w.setEvery(ctx, 0)
}

// killHosts kills some hosts, and checks what is left of steps of which all but the first are in memory. It returns
// the newest whole one, which is at level nvme then.
func (w *world) killHosts(ctx context.Context, steps [3]stepKey) (whole stepKey, err error) {
	hosts := w.chunkservers()[:1+w.rng.IntN(len(victims)+2)]
	away := time.Duration(w.rng.IntN(1500)) * time.Millisecond
	lost := len(hosts) > len(victims)
	if lost {
		w.m.doom(steps[1:]...)
	}
	w.log("%v die for %v", hosts, away)
	w.c.Kill(hosts...)
	if !lost {
		if err := errors.Join(w.whole(ctx, steps[1]), w.whole(ctx, steps[2])); err != nil {
			return whole, fmt.Errorf("while %d hosts are away: %w", len(hosts), err)
		}
	}
	time.Sleep(away)
	if err := w.c.Restart(hosts...); err != nil {
		return whole, err
	}
	if lost {
		if err := errors.Join(w.lost(ctx, steps[1]), w.lost(ctx, steps[2])); err != nil {
			return whole, err
		}
		s, err := w.reader.Latest(ctx, moraine.Memory)
		if err == nil && keyOf(s) != steps[0] {
			err = wrongf("the newest step is said to be attempt %d step %d, and not step %d", s.Attempt, s.Step, steps[0].step)
		}
		return steps[0], errors.Join(err, w.whole(ctx, steps[0]))
	}
	for _, k := range steps[1:] {
		if err := errors.Join(w.whole(ctx, k), w.rise(ctx, k)); err != nil {
			return whole, err
		}
	}
	return steps[2], w.onDevices(ctx, steps[2])
}

// chunkservers returns the chunkservers in an order that the seed draws.
func (w *world) chunkservers() (hosts []string) {
	all := w.c.Nodes()[metadataServers:]
	for _, i := range w.rng.Perm(len(all)) {
		hosts = append(hosts, all[i])
	}
	return hosts
}

// metadataServers is how many of the nodes of incluster are metadata servers.
const metadataServers = 3
