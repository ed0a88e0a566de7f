package mover

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/transport/wire"
)

// unreadableTries is how often a checkpoint whose headers cannot be read is
// tried before it is given up: a repair may bring them back.
const unreadableTries = 8

// commitStep checks a sealed checkpoint and commits it, or aborts it with the
// reason. If we stop between the two, the index is an unlinked file of this
// session, and the next mover writes its own.
func (w *work) commitStep(ctx context.Context) error {
	commit := &wire.CommitStep{Key: w.job.GetStep(), Job: w.job.GetId(), LeaseEpoch: w.job.GetLeaseEpoch()}
	index, err := w.deps.CheckStep(ctx, w.job.GetStep())
	switch {
	case err == nil:
		commit.Index = index
	case w.isVerdict(err):
		commit.Error = wire.Text(err.Error(), wire.MaxText)
	default:
		return err
	}
	// COMMIT POINT of the checkpoint.
	_, err = w.deps.Client.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: commit}})
	if errors.Is(err, moraine.Aborted) {
		return nil // it ran into its time limit, or a rank gave it up
	}
	return err
}

// isVerdict reports whether a check failed in a way that another look will not
// change.
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
