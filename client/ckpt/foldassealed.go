package ckpt

import (
	"context"

	"github.com/morainefs/moraine/transport/wire"
)

// The service gives the check of a step of many ranks to a mover while ranks still seal. Their headers are
// gigabytes, and most are read by the time when the last one is sealed.

const (
	// foldRounds bounds how often the parts of a step are listed before it is sealed.
	foldRounds = 16
	// sealedPoll is how many milliseconds the service may wait before it answers how many ranks have sealed.
	sealedPoll = 100
)

// asSealed folds the parts of a step while its ranks seal them, and returns the step once it has folded
// all. A part that cannot be read is read again after the last seal: a repair may mend it meanwhile.
func (f *folder) asSealed(ctx context.Context, key *wire.StepKey) (*wire.Step, error) {
	few := max(1, len(f.done)/foldRounds)
	seen := 0 // seals before the last list
	step, err := f.step, error(nil)
	for {
		info := stepInfo(step)
		if err := stepEnded(&info); err != nil {
			return nil, err
		}
		sealed := int(step.GetSealed())
		whole := sealed == len(f.done)
		if whole || sealed-seen >= few {
			seen = sealed
			err := f.takeNew(ctx, key)
			if whole || ctx.Err() != nil {
				return step, err
			}
		}
		if step, err = awaitStep(ctx, f.c, &wire.GetStep{Key: key, WaitMillis: sealedPoll}); err != nil {
			return nil, err
		}
	}
}

// takeNew folds the parts that have been sealed since the last call.
func (f *folder) takeNew(ctx context.Context, key *wire.StepKey) error {
	if f.broken != nil {
		return f.broken
	}
	parts, err := listParts(ctx, f.c, key)
	if err != nil {
		return err
	}
	return f.take(ctx, parts)
}
