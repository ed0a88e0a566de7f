package ckptcmd

import (
	"cmp"
	"fmt"
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
	// launches are those after the first one of which a committed step is left, and span is the time
	// from the first commit that is left to the last one.
	launches []launch
	span     time.Duration
}

// launch is an attempt of a run that followed another one.
type launch struct {
	Attempt uint32 `json:"attempt"`
	// FirstCommit is that of the first step of it that is left; absent: none is.
	FirstCommit time.Time `json:"first_commit,omitzero"`
	// Failure: it counts as the restart after a failure. The records do not say why a launch ended.
	Failure bool `json:"counts_as_failure"`
}

// failures counts the launches that followed a failure.
func (o observed) failures() (n int) {
	for _, l := range o.launches {
		if l.Failure {
			n++
		}
	}
	return n
}

// mtbf returns the mean time between launches that followed a failure; 0 if there was none.
func (o observed) mtbf() time.Duration {
	if o.failures() == 0 {
		return 0
	}
	return o.span / time.Duration(o.failures())
}

// counted says which launches count as failures, and which do not.
func (o observed) counted() string {
	var failures, planned []uint32
	for _, l := range o.launches {
		if l.Failure {
			failures = append(failures, l.Attempt)
		} else {
			planned = append(planned, l.Attempt)
		}
	}
	list := func(of []uint32) string {
		shown := of[max(len(of)-maxShownRanks, 0):] // the newest
		return rankList(shown, len(of)-len(shown))
	}
	text := fmt.Sprintf("The mean time between failures is that between launches, in %v from the first commit that is left to the last. As failures count the starts of attempts %s.",
		o.span.Round(time.Second), list(failures))
	if len(planned) > 0 {
		text += fmt.Sprintf(" Attempts %s do not: they were planned.", list(planned))
	}
	return text + " Nothing records why a launch ended: name with --planned those that no failure has caused. A few launches say little."
}

// observe reads the committed steps of a run. The times between saves are those of the last attempt, whose
// launch no failure has ended. The attempts in planned followed no failure. The time of a step is the time between two commits, which has the stall in
// it, divided by the steps between them.
func observe(steps []ckpt.StepInfo, planned []uint) observed {
	if len(steps) == 0 {
		return observed{}
	}
	steps = slices.SortedFunc(slices.Values(steps), func(a, b ckpt.StepInfo) int { return a.CommittedAt.Compare(b.CommittedAt) })
	byAttempt := func(a, b ckpt.StepInfo) int { return cmp.Compare(a.Attempt, b.Attempt) }
	last := slices.MaxFunc(steps, byAttempt).Attempt
	o := observed{span: steps[len(steps)-1].CommittedAt.Sub(steps[0].CommittedAt)}
	for attempt := slices.MinFunc(steps, byAttempt).Attempt + 1; attempt <= last; attempt++ {
		l := launch{Attempt: attempt, Failure: !slices.Contains(planned, uint(attempt))}
		if i := slices.IndexFunc(steps, func(s ckpt.StepInfo) bool { return s.Attempt == attempt }); i >= 0 {
			l.FirstCommit = steps[i].CommittedAt
		}
		o.launches = append(o.launches, l)
	}
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
