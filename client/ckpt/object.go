package ckpt

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// flushOf takes one committed step to the bucket, for a caller that waits for level object.
type flushOf struct {
	c   cluster
	job uint64 // the flush of the step in the cluster; 0: it was not requested
}

// further requests the flush of the step, or checks the flush that was requested. It fails if the flush has ended
// and cannot succeed, or if no host has a bucket.
func (f *flushOf) further(ctx context.Context, s *StepInfo) error {
	if f.job == 0 {
		return f.begin(ctx, s)
	}
	resp, err := f.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: f.job, Ended: true}}})
	if err != nil {
		return err
	}
	jobs := resp.GetJobs().GetJobs()
	if len(jobs) == 0 {
		f.job = 0 // it ended long ago
		return nil
	}
	switch j := jobs[0]; j.GetState() {
	case wire.JobState_JOB_STATE_FAILED, wire.JobState_JOB_STATE_CANCELED:
		return &moraine.Error{Op: "ckpt.Wait", Ref: s.ref(), Kind: moraine.Aborted,
			Err: fmt.Errorf("the flush to the bucket ended without success (moraine job ls --ended): %s", j.GetError())}
	case wire.JobState_JOB_STATE_DONE:
		f.job = 0 // another job has the last files
	}
	return nil
}

// begin queues the flush. A flush of the same step that is queued already is found again.
func (f *flushOf) begin(ctx context.Context, s *StepInfo) error {
	tier, err := f.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
	if err != nil && !errors.Is(err, moraine.PermissionDenied) { // a confined client may flush, not look
		return err
	}
	if err == nil && tier.GetTier().GetHosts() == 0 {
		return &moraine.Error{Op: "ckpt.Wait", Ref: s.ref(), Kind: moraine.Unavailable, Err: errors.New(
			"no chunkserver has a bucket, so the step stays at " + s.Level.String() + ": start them with --bucket (moraine tier status)")}
	}
	resp, err := f.c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{
		Kind: wire.JobKind_JOB_KIND_FLUSH, Inodes: []uint64{uint64(s.Dir)}}}})
	if err != nil {
		return err
	}
	for _, j := range resp.GetJobs().GetJobs() {
		f.job = j.GetId()
	}
	return nil
}
