package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
)

// The agent forgets how a part ended, after many others or a restart. The cluster still knows the step.

// forgotten is a part of which the agent knows nothing.
type forgotten struct {
	a   *Agent
	key partKey
}

// wait waits until the step of the part has a level. Whether the part is in no cluster yet only an agent
// can say that has it: so local is NotFound.
func (f forgotten) wait(ctx context.Context, name string, level moraine.Level) (*agentproto.WaitReply, error) {
	if name == agentproto.Local {
		return nil, f.notKnown("agent.Wait")
	}
	info, err := f.step(ctx, "agent.Wait")
	switch {
	case err != nil && name == agentproto.Written:
		return nil, fmt.Errorf("%w, and the cluster does not say how it ended: %w", f.notKnown("agent.Wait"), err)
	case err != nil:
		return nil, err
	case name == agentproto.Written && (info.State == ckpt.StepOpen || info.State == ckpt.StepSealed):
		return &agentproto.WaitReply{Level: agentproto.Local}, nil
	}
	c, err := f.a.source.client(ctx, f.a.deps.Connect)
	if err != nil {
		return nil, err
	}
	if info, err = ckpt.AwaitStep(ctx, c, client.StepKey{Run: info.Run, Attempt: f.key.attempt, Step: f.key.step}, max(level, moraine.Memory)); err != nil {
		return nil, err
	}
	return &agentproto.WaitReply{Level: info.Level.String(), Path: info.Path, Bytes: info.Bytes}, nil
}

// progress returns the state of the part. Nobody has counted its bytes.
func (f forgotten) progress(ctx context.Context) (*agentproto.ProgressReply, error) {
	info, err := f.step(ctx, "agent.Progress")
	if err != nil {
		return nil, err
	}
	state := agentproto.Failed
	switch info.State {
	case ckpt.StepOpen, ckpt.StepSealed:
		state = agentproto.Local
	case ckpt.StepCommitted:
		state = agentproto.Committed
	}
	return &agentproto.ProgressReply{State: state}, nil
}

// step asks the cluster for the step. It fails with NotFound if the cluster has no such part either.
func (f forgotten) step(ctx context.Context, op string) (ckpt.StepInfo, error) {
	c, err := f.a.source.client(ctx, f.a.deps.Connect)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	run, err := c.Stat(ctx, f.key.path)
	if err != nil {
		return ckpt.StepInfo{}, f.unless(err, op)
	}
	info, err := ckpt.GetStep(ctx, c, client.StepKey{Run: run.Inode(), Attempt: f.key.attempt, Step: f.key.step})
	if err != nil {
		return info, f.unless(err, op)
	}
	if info.State == ckpt.StepOpen && f.mayBeMissing(&info) {
		return info, f.notKnown(op)
	}
	return info, nil
}

// mayBeMissing reports whether an open step waits for the rank, or has too many missing ranks to list it.
func (f forgotten) mayBeMissing(info *ckpt.StepInfo) bool {
	if slices.Contains(info.Missing, f.key.rank) {
		return true
	}
	cut := uint32(len(info.Missing)) < info.World-info.Sealed
	return cut && (len(info.Missing) == 0 || f.key.rank > slices.Max(info.Missing))
}

// unless returns err, or notKnown if the cluster does not know the step.
func (f forgotten) unless(err error, op string) error {
	if errors.Is(err, moraine.NotFound) {
		return f.notKnown(op)
	}
	return err
}

// notKnown is the error of a request for a part that nobody has.
func (f forgotten) notKnown(op string) error {
	return &moraine.Error{Op: op, Ref: fmt.Sprintf("%s step %d", f.key.path, f.key.step), Kind: moraine.NotFound,
		Err: errors.New("the node has no such part: it was never sealed here, or has long ended")}
}
