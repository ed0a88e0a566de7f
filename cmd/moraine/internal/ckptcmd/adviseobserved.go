package ckptcmd

import (
	"cmp"
	"slices"
	"time"

	"github.com/morainefs/moraine/client/ckpt"
)

// observed is what the records of a run say.
type observed struct {
	gap   time.Duration // median between two commits
	steps int
	// perStep is the median time of one step of the training, between two commits; 0: not known.
	perStep time.Duration
	// launches counts those after the first one of which a committed step is left, and span is the time
	// from the first commit that is left to the last one.
	launches int
	span     time.Duration
}

// mtbf returns the mean time between launches; 0 if there was one.
func (o observed) mtbf() time.Duration {
	if o.launches == 0 {
		return 0
	}
	return o.span / time.Duration(o.launches)
}

// observe reads the committed steps of a run. The times between saves are those of the last attempt, whose
// launch no failure has ended. The time of a step is the time between two commits, which has the stall in
// it, divided by the steps between them.
func observe(steps []ckpt.StepInfo) observed {
	if len(steps) == 0 {
		return observed{}
	}
	steps = slices.SortedFunc(slices.Values(steps), func(a, b ckpt.StepInfo) int { return a.CommittedAt.Compare(b.CommittedAt) })
	byAttempt := func(a, b ckpt.StepInfo) int { return cmp.Compare(a.Attempt, b.Attempt) }
	last := slices.MaxFunc(steps, byAttempt).Attempt
	o := observed{launches: int(last - slices.MinFunc(steps, byAttempt).Attempt), span: steps[len(steps)-1].CommittedAt.Sub(steps[0].CommittedAt)}
	var before *ckpt.StepInfo
	var gaps, perStep []time.Duration
	for _, s := range steps {
		if s.Attempt != last {
			continue
		}
		o.steps++
		if before != nil {
			gap := s.CommittedAt.Sub(before.CommittedAt)
			gaps = append(gaps, gap)
			if s.Step > before.Step {
				perStep = append(perStep, gap/time.Duration(s.Step-before.Step))
			}
		}
		before = &s
	}
	o.gap, o.perStep = median(gaps), median(perStep)
	return o
}

// median returns the upper median; 0 of nothing.
func median(of []time.Duration) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[len(of)/2]
}
