package repair

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

const (
	// stepLossPoll is how often the leader asks whether stripes were lost or found, and so
	// looks for checkpoints that have lost bytes, or have them again: at those that it suspects
	// at once, and at all.
	stepLossPoll = time.Second
	// stepLossAgain is after how long it looks again all the same, while anything is lost:
	// an object may have taken the place of stripes, or be gone.
	stepLossAgain = 10 * time.Minute
	// stepLossExtents is how many extents it looks at before it lets others read, and
	// stepLossPause how long it rests then: a look at all checkpoints is less than a tenth of
	// what a core does.
	stepLossExtents = 128
	stepLossPause   = 100 * time.Millisecond
)

// judgeSteps keeps what the state calls lost checkpoints what they are, until ctx ends. A
// new leader begins with a look, where there ever was a loss.
func (w *lossWatch) judgeSteps(ctx context.Context) {
	w.last = w.Clock.Now()
	for {
		if err := w.step(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("the leader could not look for lost checkpoints: it tries again", "err", err)
		}
		pause := stepLossPoll
		if w.full != nil {
			pause = stepLossPause
		}
		if !w.Pause(ctx, nil, pause) {
			return
		}
	}
}

// lossWatch is the leader's memory of what it has looked at.
type lossWatch struct {
	*lead.Term
	quick uint64                    // how often stripes had been lost or found at the last look at suspects
	lost  map[moraine.StripeID]bool // that were lost then
	seen  uint64                    // the same of the last look at all
	last  time.Time                 // when that began
	full  *ckpt.StepLook            // a look at all that is under way
}

// step looks at once at the checkpoints that most likely lost or found something, and goes on
// with the look at all of them.
func (w *lossWatch) step(ctx context.Context) error {
	changes, stripes, steps, err := w.stepLosses()
	if err != nil {
		return err
	}
	if changes != w.quick || stripes > 0 {
		if err := w.suspects(ctx, changes); err != nil {
			return err
		}
	}
	now := w.Clock.Now()
	if w.full == nil {
		if changes == w.seen && (stripes+steps == 0 || now.Sub(w.last) < stepLossAgain) {
			return nil
		}
		w.last, w.full = now, &ckpt.StepLook{}
	}
	if err := w.look(ctx, w.full); err != nil {
		w.full = nil // all again
		return err
	}
	if w.full.Done {
		w.seen, w.full = w.full.Changes, nil
	}
	return nil
}

// suspects looks at the checkpoints of stripes that are lost, and at those that are called lost.
func (w *lossWatch) suspects(ctx context.Context, changes uint64) error {
	var look *ckpt.StepLook
	lost := w.lost
	err := w.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		look, lost, err = ckpt.LossSuspects(w.Machine.View(r), w.lost, changes != w.quick)
		return err
	})
	for err == nil && look != nil && !look.Done && ctx.Err() == nil {
		err = w.look(ctx, look)
	}
	if err == nil {
		w.quick, w.lost = changes, lost
	}
	return err
}

// look goes on with a look, by one part, and records what it found.
func (w *lossWatch) look(ctx context.Context, look *ckpt.StepLook) error {
	err := w.Store.View(func(r kvtx.Reader, _ uint64) error {
		return ckpt.FindStepLoss(w.Machine.View(r), look, stepLossExtents)
	})
	if err != nil {
		return err
	}
	changes, _, _, err := w.stepLosses()
	if err != nil {
		return err
	}
	if op := look.Judge(changes); op != nil {
		_, err = w.Command(ctx, &statepb.Command{Op: &statepb.Command_JudgeSteps{JudgeSteps: op}})
	}
	return err
}

func (w *lossWatch) stepLosses() (changes, stripes, steps uint64, err error) {
	err = w.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		changes, stripes, steps, err = ckpt.StepLosses(w.Machine.View(r))
		return err
	})
	return changes, stripes, steps, err
}
