package client

import (
	"context"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// StepKey names a checkpoint.
type StepKey struct {
	// Run is the directory of the run.
	Run     moraine.InodeID
	Attempt uint32
	Step    uint64
}

// LeaseStep takes a read lease on a committed checkpoint. No client can remove
// it until release is called, or until the session that took the lease ends. It
// fails with NotFound if the checkpoint was removed, and with Incomplete if it
// is not committed.
//
// release ends this one lease, and never one of a later session: the lease ended with its own.
// A caller calls it once. Its error is SessionExpired if the lease had ended already.
func (c *Client) LeaseStep(ctx context.Context, key StepKey) (release func(context.Context) error, err error) {
	w := &wire.StepKey{Run: uint64(key.Run), Attempt: key.Attempt, Step: key.Step}
	_, owner, err := c.meta.DoIn(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_LeaseStep{LeaseStep: &wire.LeaseStep{Key: w}}})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := c.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReleaseStep{ReleaseStep: &wire.ReleaseStep{Key: w}}}, owner)
		return err
	}, nil
}
