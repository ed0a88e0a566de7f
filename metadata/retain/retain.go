// Package retain applies the policy of checkpoints: it brings steps to the bucket, lets them leave the
// devices, and removes those that no level keeps.
//
// The path of a step: a command changes it (Keeper.Observe notes its run). Soon after, keep looks at the steps of the
// run, newest first (ckpt.FindRetained), and proposes those to which something should happen. The state judges each
// again (ckpt.RetainSteps). Once a minute keep looks at all runs: time has passed, a policy has changed, a
// reader has closed a step, or a former leader did not come to it. So nothing that a leader knew is needed by
// the next one.
package retain

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// passEvery is how often the leader looks at all runs.
	passEvery = time.Minute
	// afterChange is the pause between a change of a step and the look at its run, so that one look covers
	// the changes of many files.
	afterChange = time.Second
	// runsAtOnce and stepsAtOnce bound what one view of the state reads. lookPause is the rest that
	// follows: a pass over many runs takes little of a core.
	runsAtOnce  = 256
	stepsAtOnce = 256
	lookPause   = 20 * time.Millisecond
)

// Keeper is one leadership's work to apply the policy of checkpoints.
type Keeper struct {
	*lead.Term
	changed lead.Poke

	mu   sync.Mutex
	runs map[moraine.RunID]struct{} // a step of these changed
}

// New returns the part of a new leadership, which has looked at nothing yet.
func New(t *lead.Term) *Keeper {
	return &Keeper{Term: t, changed: lead.NewPoke(), runs: map[moraine.RunID]struct{}{}}
}

// Works returns the loops that run during the leadership.
func (k *Keeper) Works() []func(context.Context) { return []func(context.Context){k.keep} }

// Observe notes the runs that the events of an applied command concern.
func (k *Keeper) Observe(ev *kvtx.Events) {
	if len(ev.StepsChanged) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range ev.StepsChanged {
		k.runs[moraine.RunID(s.GetRun())] = struct{}{}
	}
	k.changed.Set()
}

// take returns the runs of which steps changed, and forgets them.
func (k *Keeper) take() []moraine.RunID {
	k.mu.Lock()
	defer k.mu.Unlock()
	runs := make([]moraine.RunID, 0, len(k.runs))
	for r := range k.runs {
		runs = append(runs, r)
	}
	clear(k.runs)
	slices.Sort(runs)
	return runs
}

// keep applies the policy until ctx ends.
func (k *Keeper) keep(ctx context.Context) {
	var last time.Time
	for {
		err := k.lookAt(ctx, k.take())
		if now := k.Clock.Now(); err == nil && now.Sub(last) >= passEvery {
			last = now
			err = k.lookAtAll(ctx)
		}
		if err != nil && ctx.Err() == nil {
			k.Log.Warn("could not apply the policy of checkpoints; trying again", "err", err)
		}
		if !k.Pause(ctx, k.changed, passEvery) || !k.Pause(ctx, nil, afterChange) {
			return
		}
	}
}

// lookAtAll looks at every run, unless no directory has a policy.
func (k *Keeper) lookAtAll(ctx context.Context) error {
	for after := moraine.RunID(0); ; {
		var runs []moraine.RunID
		err := k.Store.View(func(r kvtx.Reader, _ uint64) error {
			v := k.Machine.View(r)
			c, err := v.Counters()
			if err != nil || c[record.CPolicies] == 0 {
				return err
			}
			runs, err = ckpt.Runs(v, after, runsAtOnce)
			return err
		})
		if err != nil || len(runs) == 0 {
			return err
		}
		if err := k.lookAt(ctx, runs); err != nil {
			return err
		}
		after = runs[len(runs)-1]
	}
}

// lookAt looks at the steps of some runs.
func (k *Keeper) lookAt(ctx context.Context, runs []moraine.RunID) error {
	for _, run := range runs {
		for look := ckpt.NewRetainLook(run); !look.Done; {
			err := k.Store.View(func(r kvtx.Reader, _ uint64) error {
				return ckpt.FindRetained(k.Machine.View(r), look, stepsAtOnce)
			})
			if err != nil {
				return err
			}
			if err := k.propose(ctx, look.Due); err != nil {
				return err
			}
			if rests := !look.Done || len(look.Due) > 0; rests && !k.Pause(ctx, nil, lookPause) {
				return ctx.Err()
			}
			look.Due = nil
		}
	}
	return nil
}

// propose applies the policy to steps of one run.
func (k *Keeper) propose(ctx context.Context, steps []*wire.StepKey) error {
	for some := range slices.Chunk(steps, ckpt.MaxRetained) {
		resp, err := k.Command(ctx, &statepb.Command{Op: &statepb.Command_RetainSteps{RetainSteps: &statepb.RetainSteps{Steps: some}}})
		if err != nil {
			return err
		}
		for _, s := range resp.GetSteps().GetSteps() {
			action := "move"
			if s.GetState() == record.StepDeleted {
				action = "remove"
			}
			k.Metrics.PolicySteps.WithLabelValues(action).Inc()
			k.Log.Info("applied the policy of checkpoints", "run", moraine.InodeID(s.GetKey().GetRun()), "attempt", s.GetKey().GetAttempt(), "step", s.GetKey().GetStep(), "action", action)
		}
	}
	return nil
}
