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
	// stepLossPoll is how often the leader checks whether stripes were lost or found. If so it
	// inspects the suspected checkpoints at once, and then all, for lost bytes.
	stepLossPoll = time.Second
	// stepLossAgain is how often it inspects all while anything is lost, because an object may have
	// replaced stripes, or be gone.
	stepLossAgain = 10 * time.Minute
	// stepLossExtents is the number of extents that it inspects before it lets others read, and
	// stepLossPause the rest that follows. Inspecting all checkpoints takes less than a tenth of a
	// core.
	stepLossExtents = 128
	stepLossPause   = 100 * time.Millisecond
)

// judgeSteps keeps the state's list of lost checkpoints correct, until ctx ends. A new leader
// starts with an inspection if there ever was a loss.
func (w *lossWatch) judgeSteps(ctx context.Context) {
	w.last = w.Clock.Now()
	for {
		if err := w.step(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("could not search for lost checkpoints; trying again", "err", err)
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

// lossWatch is the leader's memory of its inspections.
type lossWatch struct {
	*lead.Term
	quick uint64                    // count of losses and recoveries at the last inspection of suspects
	lost  map[moraine.StripeID]bool // stripes lost then
	seen  uint64                    // the same count at the last inspection of all
	last  time.Time                 // when that began
	full  *ckpt.StepLook            // an inspection of all in progress
}

// step inspects the checkpoints that most likely lost or regained bytes at once, and continues the
// inspection of all.
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
		w.full = nil // inspect all again
		return err
	}
	if w.full.Done {
		w.seen, w.full = w.full.Changes, nil
	}
	return nil
}

// suspects inspects the checkpoints of lost stripes and those recorded as lost.
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

// look continues an inspection by one part and records its findings.
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
