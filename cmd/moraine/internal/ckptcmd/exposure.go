package ckptcmd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
)

// exposure is what a crash now would lose if only one level, and the safer ones, survived it.
type exposure struct {
	Level string `json:"level"`
	// Step is the newest good one at the level; without one, all work is exposed.
	Step      uint64    `json:"step"`
	Attempt   uint32    `json:"attempt"`
	Committed time.Time `json:"committed,omitzero"`
	// Reached is when the step came to the level.
	Reached time.Time `json:"reached,omitzero"`
	// LostSteps counts from that step to the newest that a rank has begun to save, and LostSeconds
	// from its commit to now.
	LostSteps   uint64  `json:"lost_steps"`
	LostSeconds float64 `json:"lost_seconds"`
}

// found reports whether the level has a step.
func (e exposure) found() bool { return !e.Committed.IsZero() }

// exposures computes the exposure at each level. newest has the newest good step of each level, if any.
func exposures(steps []ckpt.StepInfo, newest map[moraine.Level]ckpt.StepInfo, now time.Time) []exposure {
	begun := uint64(0)
	if len(steps) > 0 {
		attempt := slices.MaxFunc(steps, func(a, b ckpt.StepInfo) int { return cmp.Compare(a.Attempt, b.Attempt) }).Attempt
		for _, s := range steps {
			if s.Attempt == attempt && (s.State == ckpt.StepOpen || s.State == ckpt.StepSealed || s.State == ckpt.StepCommitted) {
				begun = max(begun, s.Step)
			}
		}
	}
	var out []exposure
	for level := moraine.Memory; level <= moraine.Object; level++ {
		e := exposure{Level: level.String(), LostSteps: begun}
		if s, ok := newest[level]; ok {
			e.Step, e.Attempt, e.Committed, e.Reached = s.Step, s.Attempt, s.CommittedAt, s.Reached[level]
			e.LostSteps = max(begun, s.Step) - s.Step
			e.LostSeconds = max(now.Sub(s.CommittedAt).Seconds(), 0)
		}
		out = append(out, e)
	}
	return out
}

// newestOfLevels returns the newest good step of each level of the branch that is alive.
func newestOfLevels(ctx context.Context, run *ckpt.Run) (map[moraine.Level]ckpt.StepInfo, error) {
	out := map[moraine.Level]ckpt.StepInfo{}
	for level := moraine.Memory; level <= moraine.Object; level++ {
		s, err := run.Latest(ctx, level)
		if errors.Is(err, moraine.NotFound) {
			break
		}
		if err != nil {
			return nil, err
		}
		out[level] = s
	}
	return out, nil
}

// exposureOf reads the steps of a run, and computes its exposure.
func exposureOf(ctx context.Context, c *cli.Connection, run *ckpt.Run) ([]ckpt.StepInfo, []exposure, error) {
	steps, err := ckpt.ListSteps(ctx, c.Client, run.ID(), true)
	if err != nil {
		return nil, nil, err
	}
	newest, err := newestOfLevels(ctx, run)
	if err != nil {
		return nil, nil, err
	}
	return steps, exposures(steps, newest, time.Now()), nil
}
