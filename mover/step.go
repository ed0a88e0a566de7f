package mover

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
)

// unreadableTries is how often the mover tries a checkpoint with unreadable headers before it
// aborts it: a repair may make them readable.
const unreadableTries = 8

// commitStep checks a checkpoint and commits it once it is sealed, or aborts it with the reason. If the
// mover stops between the two, the index is an unlinked file of this session, and the next
// mover writes its own.
func (w *work) commitStep(ctx context.Context) error {
	commit := &wire.CommitStep{Key: w.job.GetStep(), Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch()}
	key := w.job.GetStep()
	done, err := w.waitForRanks(ctx)
	if err != nil {
		return err
	}
	defer done()
	index, err := w.deps.CheckStep(ctx, client.StepKey{Run: moraine.InodeID(key.GetRun()), Attempt: key.GetAttempt(), Step: key.GetStep()})
	switch {
	case err == nil:
		commit.Index = &wire.PartFile{Inode: uint64(index.Inode), Name: index.Name, Crc: index.CRC, Size: uint64(index.Size)}
	case errors.Is(err, moraine.Aborted):
		return nil // it timed out, or a rank aborted it, before all had sealed
	case w.isVerdict(err):
		commit.Error = wire.Text(err.Error(), wire.MaxText)
	default:
		return err
	}
	// COMMIT POINT of the checkpoint.
	_, err = w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: commit}})
	if errors.Is(err, moraine.Aborted) {
		return nil // it timed out, or a rank aborted it
	}
	return err
}

// waitForRanks returns once the mover may check the step. A check of a step that ranks still seal has a lease
// for as long as they want, and keeps what it has read in memory: a mover has one, and the others wait
// for a later lease. done ends it.
func (w *work) waitForRanks(ctx context.Context) (done func(), err error) {
	done = func() {}
	if w.job.GetTotal() < wire.ManyRanks {
		return done, nil
	}
	resp, err := w.deps.Service.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: w.job.GetStep()}}})
	if err != nil || resp.GetStep().GetStep().GetState() != wire.StepState_STEP_STATE_OPEN {
		return done, err
	}
	select {
	case w.early <- struct{}{}:
		return func() { <-w.early }, nil
	default:
		return done, &moraine.Error{Op: "mover", Kind: moraine.Unavailable, Err: errors.New("another step is checked while its ranks seal")}
	}
}

// isVerdict reports whether a check failed in a way that a repetition will not change.
func (w *work) isVerdict(err error) bool {
	if v := (*ckpt.Verdict)(nil); errors.As(err, &v) {
		return true
	}
	switch moraine.KindOf(err) {
	case moraine.Corrupt, moraine.Lost, moraine.NotFound:
		return w.job.GetAttempts() >= unreadableTries
	}
	return false
}
