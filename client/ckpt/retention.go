package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/retention"
	"github.com/morainefs/moraine/transport/wire"
)

// Retention is what a policy says of one step.
type Retention struct {
	Step StepInfo
	// Action is "stay", "evict" (it stays in the bucket, and leaves the devices) or "remove".
	Action string
	// Why names the rule.
	Why string
}

// Retention returns what a policy says of each committed step of the run, newest first. It changes nothing: the
// leader applies the policy in effect by itself. It does not see who reads a step.
func (r *Run) Retention(ctx context.Context, p Policy) ([]Retention, error) {
	steps, err := listSteps(ctx, r.c, r.id, false)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(steps, func(a, b StepInfo) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.Step, a.Step))
	})
	protected, hasGood, err := r.protectedSteps(ctx)
	if err != nil {
		return nil, err
	}
	judge := retention.NewJudge(p.rules(), hasGood)
	now := r.opts.Clock.Now()
	out := make([]Retention, len(steps))
	for n, s := range steps {
		v := judge.Next(retention.Step{Number: s.Step, Level: s.Level, Bytes: s.Bytes, Age: uint64(max(now.Sub(s.CommittedAt).Milliseconds(), 0)),
			Tags: s.Tags, Good: s.Good(), Pinned: s.Pinned, Protected: protected[StepRef{s.Attempt, s.Step}]})
		out[n] = Retention{Step: s, Action: v.Action.String(), Why: v.Why}
	}
	return out, nil
}

// Good reports whether the step is committed, has lost no bytes, and is not quarantined.
func (s *StepInfo) Good() bool { return s.State == StepCommitted && s.Mark != MarkQuarantined }

// protectedSteps returns the steps of the run that no rule removes, with the reason: the newest at each level of
// the branch, and the parent of the present attempt. hasGood says whether the branch has a good one.
func (r *Run) protectedSteps(ctx context.Context) (protected map[StepRef]string, hasGood bool, err error) {
	protected = map[StepRef]string{}
	for level := moraine.Memory; level <= moraine.Object; level++ {
		s, err := r.newest(ctx, level)
		if err != nil {
			return nil, false, err
		}
		if s != nil {
			protected[StepRef{s.Attempt, s.Step}] = "latest-" + level.String() + " names it"
			hasGood = true
		}
	}
	present, err := r.present(ctx)
	if err != nil {
		return nil, false, err
	}
	if p := present.GetParent(); p != nil {
		protected[StepRef{p.GetAttempt(), p.GetStep()}] = fmt.Sprintf("attempt %d continues from it", present.GetAttempt())
	}
	return protected, hasGood, nil
}

// newest returns the newest good step of the present branch at a level or safer; nil if there is none.
func (r *Run) newest(ctx context.Context, level moraine.Level) (*StepInfo, error) {
	resp, err := r.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{Run: uint64(r.id), Level: uint32(level)}}})
	if errors.Is(err, moraine.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := stepInfo(resp.GetStep().GetStep())
	return &s, nil
}

// present returns the run as it is now.
func (r *Run) present(ctx context.Context) (*wire.Run, error) {
	dir, name := splitPath(r.path)
	parent, err := runParent(ctx, r.c, dir, true)
	if err != nil {
		return nil, err
	}
	resp, err := r.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: uint64(parent), Name: name, ReadOnly: true}}})
	return resp.GetRun().GetRun(), err
}
