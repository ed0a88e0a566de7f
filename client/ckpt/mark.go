package ckpt

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// Mark is what a person or a program says of a committed step.
type Mark string

// The marks. Neither the links of a run nor Resolve name a quarantined step.
const (
	MarkNone        Mark = "" // nobody said anything
	MarkHealthy     Mark = "healthy"
	MarkQuarantined Mark = "quarantined"
)

var marks = map[wire.StepMark]Mark{
	wire.StepMark_STEP_MARK_HEALTHY: MarkHealthy, wire.StepMark_STEP_MARK_QUARANTINED: MarkQuarantined,
}

// wire returns the mark's wire form in a request.
func (m Mark) wire() (wire.StepMark, error) {
	switch m {
	case MarkNone:
		return wire.StepMark_STEP_MARK_NONE, nil
	case MarkHealthy:
		return wire.StepMark_STEP_MARK_HEALTHY, nil
	case MarkQuarantined:
		return wire.StepMark_STEP_MARK_QUARANTINED, nil
	}
	return 0, invalid("ckpt.Mark", string(m), fmt.Errorf("the marks are %q, %q and %q for none", MarkHealthy, MarkQuarantined, MarkNone))
}

// StepChange changes what is said of a committed step. What is nil or empty stays as it is.
type StepChange struct {
	Mark *Mark
	// Note says why the step has its mark, 500 bytes at most. MarkNone removes it.
	Note *string
	// A step has 16 tags at most. A tag is a name as those of files.
	AddTags, RemoveTags []string
	// Pinned prevents the policy of checkpoints, and a removal that is not forced, from removing the step.
	Pinned *bool
}

// ChangeStep changes what is said of a committed step, in one log entry, and returns the step. If the mark
// changes, the links of the run move in the same entry. It fails with NotFound if the run has no
// such step, and with Incomplete if the step is not committed.
func ChangeStep(ctx context.Context, c *client.Client, key client.StepKey, change StepChange) (StepInfo, error) {
	return changeStep(ctx, overClient{c}, keyToWire(key), change)
}

func changeStep(ctx context.Context, c cluster, key *wire.StepKey, change StepChange) (StepInfo, error) {
	op := &wire.MarkStep{Key: key, Note: change.Note, AddTags: change.AddTags, RemoveTags: change.RemoveTags, Pinned: change.Pinned}
	if change.Mark != nil {
		var err error
		if op.Mark, err = change.Mark.wire(); err != nil {
			return StepInfo{}, err
		}
	}
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_MarkStep{MarkStep: op}})
	if err != nil {
		return StepInfo{}, err
	}
	return stepInfo(resp.GetStep().GetStep()), nil
}

// Mark marks a committed step of the run, with a note that says why.
func (r *Run) Mark(ctx context.Context, step StepRef, mark Mark, note string) (StepInfo, error) {
	return changeStep(ctx, r.c, stepKeyOf(r.id, step.Attempt, step.Step), StepChange{Mark: &mark, Note: &note})
}

// Pin pins a committed step of the run, or ends that: see StepChange.Pinned.
func (r *Run) Pin(ctx context.Context, step StepRef, pinned bool) (StepInfo, error) {
	return changeStep(ctx, r.c, stepKeyOf(r.id, step.Attempt, step.Step), StepChange{Pinned: &pinned})
}

// Latest returns the newest good step of the branch at a level or safer, without opening it. It fails
// with NotFound if there is none.
func (r *Run) Latest(ctx context.Context, level moraine.Level) (StepInfo, error) {
	return r.find(ctx, ResolveOptions{Level: level})
}
