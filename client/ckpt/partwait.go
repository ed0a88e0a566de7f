package ckpt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// Written returns how long it took from Seal until the part was durable and
// sealed in the cluster; 0 while it is not.
func (s *Part) Written() time.Duration {
	select {
	case <-s.done:
		return s.written
	default:
		return 0
	}
}

// Wait blocks until the step is safe at level memory, nvme or object. Then all
// ranks have sealed, and the step is committed and all its files are at that
// level. For level object Wait asks for the flush of the step, whatever the
// policy of its directory. Level local needs an agent: this rank's part
// survives the end of its process, and the step is still open. If the step was
// aborted Wait fails with Aborted and, in a *MissingError, the ranks that caused
// it.
func (s *Part) Wait(ctx context.Context, level moraine.Level) (StepInfo, error) {
	info := StepInfo{Run: s.run.id, Attempt: s.run.attempt, Step: s.step, State: StepOpen, World: s.run.opts.World}
	if err := canWaitFor(level, s.run.agent != nil); err != nil {
		return info, &moraine.Error{Op: "ckpt.Wait", Ref: s.ref(), Kind: moraine.Unimplemented, Err: err}
	}
	if err := wait(ctx, s.sealed); err != nil {
		return info, s.wrap(err)
	}
	if level == moraine.Local {
		return info, localLevel(s)
	}
	if err := wait(ctx, s.done); err != nil {
		return info, s.wrap(err)
	}
	if err := s.failure(); err != nil {
		return whyFailed(ctx, s, info, err)
	}
	info, err := waitStep(ctx, s.run.c, s.run.opts.Clock, s.key(), level)
	if info.State == StepAborted {
		s.run.noteFailure(s.step, err)
	}
	return info, err
}

// localLevel returns nil if the agent has the sealed part, or had it until it was written.
func localLevel(s *Part) error {
	if s.endCause != nil {
		return s.wrap(fmt.Errorf("%w: %w", moraine.Aborted, s.endCause))
	}
	return s.failure()
}

// canWaitFor returns why Wait cannot wait for a level; nil if it can.
func canWaitFor(level moraine.Level, agent bool) error {
	switch {
	case level >= moraine.Memory && level <= moraine.Object, level == moraine.Local && agent:
		return nil
	case level == moraine.Local:
		return errors.New("level local: without an agent, staged bytes are only in the memory of this process and die with it: " +
			"start `moraine agent` on the node and set RunOptions.Agent, or wait for memory or nvme")
	}
	return fmt.Errorf("level %s: wait for memory, nvme or object", level)
}

// whyFailed asks the service whether the part failed because the step was aborted: the service
// names the missing ranks.
func whyFailed(ctx context.Context, s *Part, info StepInfo, err error) (StepInfo, error) {
	if s.aborted || s.reported { // the service would report this same failure
		return info, err
	}
	step, serr := getStep(ctx, s.run.c, s.key())
	if serr != nil {
		return info, err
	}
	info = stepInfo(step)
	if ended := stepEnded(&info); ended != nil {
		return info, ended
	}
	return info, err
}

// Reached returns a channel that is closed once Wait for the level would return at once: the level
// is reached, or never will be. Wait says which. The end of the run closes it too.
func (s *Part) Reached(level moraine.Level) <-chan struct{} {
	reached := make(chan struct{})
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	if s.run.closed {
		close(reached)
		return reached
	}
	s.run.watchers.Go(func() {
		defer close(reached)
		_, _ = s.Wait(s.run.ctx, level) // the caller asks Wait itself
	})
	return reached
}

// Progress returns how many bytes of the part have been given to the cluster, and how many there
// are: its files with their headers. A part that is written again begins again at 0. With an agent it
// requests them from the agent. If the agent has forgotten the part both are 0, and the error is NotFound if
// the cluster does not have the part either.
func (s *Part) Progress(ctx context.Context) (written, total int64, err error) {
	if s.run.agent == nil {
		return s.progress.Load(), s.total.Load(), nil
	}
	reply, err := agentproto.Ask(ctx, s.run.agent.socket, &agentproto.Request{Progress: &agentproto.Progress{
		Run: s.run.path, Rank: s.run.opts.Rank, Attempt: s.run.attempt, Step: s.step}})
	if err != nil {
		return 0, 0, s.wrap(err)
	}
	return reply.Progress.Written, reply.Progress.Bytes, nil
}
