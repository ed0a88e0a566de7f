package metadata

import (
	"context"
	"time"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

const (
	// stepLossPoll is how often the leader asks whether stripes were lost or found, and so
	// looks for checkpoints that have lost bytes, or have them again.
	stepLossPoll = time.Second
	// stepLossAgain is after how long it looks again all the same, while anything is lost:
	// an object may have taken the place of stripes, or be gone.
	stepLossAgain = 10 * time.Minute
	// stepLossExtents is how many extents it looks at before it lets others read.
	stepLossExtents = 4096
)

// judgeSteps keeps what the state calls lost checkpoints what they are, until ctx ends. A
// new leader begins with a look, where there ever was a loss.
func (l *leader) judgeSteps(ctx context.Context) {
	var seen uint64
	last := l.deps.Clock.Now()
	for {
		changes, stripes, steps, err := l.stepLosses()
		now := l.deps.Clock.Now()
		again := stripes+steps > 0 && now.Sub(last) >= stepLossAgain
		if err == nil && (changes != seen || again) {
			last = now
			if seen, err = l.lookForLoss(ctx); err != nil {
				seen = 0 // all again
			}
		}
		if err != nil && ctx.Err() == nil {
			l.deps.Log.Warn("the leader could not look for lost checkpoints: it tries again", "err", err)
		}
		if !l.pause(ctx, nil, stepLossPoll) {
			return
		}
	}
}

func (l *leader) stepLosses() (changes, stripes, steps uint64, err error) {
	err = l.store.View(func(r state.Reader, _ uint64) (err error) {
		changes, stripes, steps, err = l.machine.StepLosses(r)
		return err
	})
	return changes, stripes, steps, err
}

// lookForLoss looks at all committed checkpoints once, and returns how often stripes had
// been lost or found when it began.
func (l *leader) lookForLoss(ctx context.Context) (uint64, error) {
	var look state.StepLook
	for !look.Done && ctx.Err() == nil {
		err := l.store.View(func(r state.Reader, _ uint64) error {
			return l.machine.FindStepLoss(r, &look, stepLossExtents)
		})
		if err != nil {
			return 0, err
		}
		changes, _, _, err := l.stepLosses()
		if err != nil {
			return 0, err
		}
		if op := look.Judge(changes); op != nil {
			if _, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_JudgeSteps{JudgeSteps: op}}); err != nil {
				return 0, err
			}
		}
	}
	return look.Changes, ctx.Err()
}
