package ckpt

import (
	"context"
	"slices"
	"sync"

	"github.com/morainefs/moraine"
)

const (
	// keptFailures bounds the steps whose failure a run remembers, so that it counts each once.
	keptFailures = 64
	// keptUnsettled bounds the written parts whose step the run asks for at the next save.
	keptUnsettled = 8
)

// failures are the saves of a run that have failed.
type failures struct {
	mu    sync.Mutex
	steps []uint64 // oldest first
	last  error    // of the newest
	// unsettled are written parts whose step was open when the run last looked.
	unsettled []*Part
}

// LastFailure returns the step and the error of the save that failed last, as far as the run has
// found out; a nil error if none has. A save fails in the background, and training goes on: call it at
// the next Begin, by which time an agent has reported what it knows. Without an agent, a step that
// another rank made fail shows up while the next save is written, or in Wait. A caller that has
// ended a save with Abort knows: that is no failure. Nor is a part that cannot be written if
// BeginOptions.Lent is set: its caller still has the bytes, and follows Done.
func (r *Run) LastFailure() (step uint64, err error) {
	f := &r.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return 0, nil
	}
	return f.steps[len(f.steps)-1], f.last
}

// noteEnd notes the failure of a part that has ended; s.sealed is closed.
func noteEnd(s *Part) {
	if err := s.failure(); err != nil && !s.aborted && !s.opts.Lent && s.run.ctx.Err() == nil {
		s.run.noteFailure(s.step, err)
	}
}

// noteFailure remembers, counts and logs the failure of a save, once.
func (r *Run) noteFailure(step uint64, err error) {
	f := &r.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.steps, step) {
		return
	}
	if len(f.steps) == keptFailures {
		f.steps = slices.Delete(f.steps, 0, 1)
	}
	f.steps, f.last = append(f.steps, step), err
	r.opts.Metrics.SavesFailed.WithLabelValues(moraine.KindOf(err).String()).Inc()
	r.opts.Log.Warn("a save has failed", "run", r.path, "step", step, "rank", r.opts.Rank, "err", err)
}

// noteWritten remembers a written part whose step may still fail.
func (r *Run) noteWritten(s *Part) {
	f := &r.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.unsettled) == keptUnsettled {
		f.unsettled = slices.Delete(f.unsettled, 0, 1)
	}
	f.unsettled = append(f.unsettled, s)
}

// settle looks how the steps of earlier parts have ended.
func (r *Run) settle(ctx context.Context) {
	f := &r.failures
	f.mu.Lock()
	parts := slices.Clone(f.unsettled)
	f.mu.Unlock()
	for _, s := range parts {
		step, err := getStep(ctx, r.c, s.key())
		if err != nil {
			return // the next save looks again
		}
		info := stepInfo(step)
		switch info.State {
		case StepOpen, StepSealed:
			continue
		case StepAborted:
			r.noteFailure(s.step, stepEnded(&info))
		}
		f.mu.Lock()
		f.unsettled = slices.DeleteFunc(f.unsettled, func(o *Part) bool { return o == s })
		f.mu.Unlock()
	}
}
