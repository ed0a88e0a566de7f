package ckpt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/transport/wire"
)

// MissingError is the cause in an Aborted error: the ranks that had not sealed their parts.
type MissingError struct {
	// Ranks are the missing ones, at most 1,000.
	Ranks []uint32
	// Reason is the service's text.
	Reason string
}

// Error returns the service's reason, or else names the ranks.
func (e *MissingError) Error() string {
	switch {
	case e.Reason != "":
		return e.Reason // it names them
	case len(e.Ranks) == 1:
		return fmt.Sprintf("rank %d has not sealed its part", e.Ranks[0])
	}
	return fmt.Sprintf("ranks %s have not sealed their parts", rankList(e.Ranks))
}

// maxListed bounds how many ranks an error lists.
const maxListed = 16

func rankList(ranks []uint32) string {
	var b strings.Builder
	for i, r := range ranks {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(ranks)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d", r)
	}
	return b.String()
}

// pollMillis is how long one GetStep waits at the service.
const pollMillis = 10_000

// getStep requests a step.
func getStep(ctx context.Context, c cluster, key *wire.StepKey) (*wire.Step, error) {
	return awaitStep(ctx, c, &wire.GetStep{Key: key})
}

// awaitStep requests a step; the service may wait for its end or its level.
func awaitStep(ctx context.Context, c cluster, op *wire.GetStep) (*wire.Step, error) {
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: op}})
	if err != nil {
		return nil, err
	}
	return resp.GetStep().GetStep(), nil
}

// stepPoll is how long waitStep pauses between two requests for a step that goes on. The service
// answers at once when ctx ends soon: without a pause, requests would follow each other until then.
const stepPoll = 100 * time.Millisecond

// waitStep waits until a step is committed at level, or never will be. If the policy leaves the step in
// memory, it lets it rise. With an error it returns the step as the service last reported it.
func waitStep(ctx context.Context, c cluster, clk clock.Clock, key *wire.StepKey, level moraine.Level) (info StepInfo, err error) {
	first := min(level, moraine.NVMe) // a step goes there by itself, unless it stays in memory
	flush := flushOf{c: c}
	for {
		s, err := awaitStep(ctx, c, &wire.GetStep{Key: key, WaitMillis: pollMillis, Level: uint32(first)})
		if err != nil {
			return info, err
		}
		info = stepInfo(s)
		if err := stepEnded(&info); err != nil {
			return info, err
		}
		if info.State == StepCommitted && info.Level >= first {
			if info.Level >= level {
				return info, nil
			}
			if err := flush.further(ctx, &info); err != nil {
				return info, err
			}
		} else if info.StaysInMemory && first > moraine.Memory {
			if err := rise(ctx, c, &info); err != nil {
				return info, err
			}
		}
		pause(ctx, clk, stepPoll)
		if err := ctx.Err(); err != nil {
			return info, &moraine.Error{Op: "ckpt.Wait", Ref: info.ref(), Kind: moraine.Timeout, Err: fmt.Errorf("%s: %w", info.Lacks(), err)}
		}
	}
}

// rise lets a step go on to the devices that stays in memory by its policy.
func rise(ctx context.Context, c cluster, s *StepInfo) error {
	_, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_MarkStep{MarkStep: &wire.MarkStep{
		Key: stepKeyOf(s.Run, s.Attempt, s.Step), Rise: true}}})
	switch kind := moraine.KindOf(err); {
	case errors.Is(err, moraine.ReadOnly), errors.Is(err, moraine.PermissionDenied):
		return &moraine.Error{Op: "ckpt.Wait", Ref: s.ref(), Kind: kind, Err: fmt.Errorf(
			"the policy of the run leaves the step in memory, and this session may not bring it to the devices: wait for level memory, or as a user who may write: %w", err)}
	case errors.Is(err, moraine.NotFound), errors.Is(err, moraine.Incomplete):
		return nil // it has ended; the next answer says how
	}
	return err
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, clk clock.Clock, d time.Duration) {
	select {
	case <-clk.After(d):
	case <-ctx.Done():
	}
}

// beginPoll is how often waitStepOfBranch looks for a step that no rank has begun.
const beginPoll = time.Second

// waitStepOfBranch is waitStep for a reader, which belongs to no attempt. Until the step has begun,
// it requests the step of the current attempt, which a new launch may change. Then it waits for the
// step of that attempt.
func (r *Run) waitStepOfBranch(ctx context.Context, step uint64, level moraine.Level) (StepInfo, error) {
	for {
		s, err := getStep(ctx, r.c, stepKeyOf(r.id, 0, step))
		if err == nil {
			info, err := waitStep(ctx, r.c, r.opts.Clock, s.GetKey(), level)
			if info.State == "" {
				info = stepInfo(s) // ctx ended during the first request
			}
			return info, err
		}
		if !errors.Is(err, moraine.NotFound) {
			return StepInfo{}, err
		}
		// An earlier attempt may have committed the step, and the current one continues from it or
		// from a later step: it does not save it again.
		info, err := r.find(ctx, ResolveOptions{Step: step, Exact: true, Level: moraine.Memory})
		if err == nil {
			return waitStep(ctx, r.c, r.opts.Clock, stepKeyOf(info.Run, info.Attempt, info.Step), level)
		}
		if !errors.Is(err, moraine.NotFound) && !errors.Is(err, moraine.Lost) {
			return info, err
		}
		pause(ctx, r.opts.Clock, beginPoll)
		if err := ctx.Err(); err != nil {
			return StepInfo{}, &moraine.Error{Op: "ckpt.Wait", Ref: fmt.Sprintf("step %d", step), Kind: moraine.Timeout,
				Err: fmt.Errorf("no rank of the current attempt has begun it: %w", err)}
		}
	}
}

// stepEnded returns the error of a step that has ended and cannot be read; otherwise nil.
func stepEnded(s *StepInfo) error {
	e := &moraine.Error{Op: "checkpoint", Ref: s.ref()}
	switch s.State {
	case StepAborted:
		e.Kind, e.Err = moraine.Aborted, &MissingError{Ranks: s.Missing, Reason: s.Reason}
	case StepDeleted:
		e.Kind = moraine.NotFound
	case StepLost:
		e.Kind, e.Err = moraine.Lost, fmt.Errorf("%s", s.Reason)
	default:
		return nil
	}
	return e
}
