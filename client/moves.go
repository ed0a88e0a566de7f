package client

import (
	"context"
	"iter"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// moveBatch is how many inodes one QueueMove names.
const moveBatch = 256

// QueueMove makes a job of kind FLUSH, STAGE or EVICT for each file, and for a
// directory one that does so for every file below it. What is queued already is
// answered as it is. The jobs are in the order of the inodes.
func (c *Client) QueueMove(ctx context.Context, kind wire.JobKind, inodes ...moraine.InodeID) ([]*wire.Job, error) {
	var jobs []*wire.Job
	for batch := range slices.Chunk(inodes, moveBatch) {
		resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{
			Kind: kind, Inodes: wireInodes(batch)}}})
		if err == nil && resp.GetJobs() == nil {
			err = retry.BadReply("queue move")
		}
		if err != nil {
			return jobs, retry.Wrap("client.QueueMove", batch[0].String(), err)
		}
		jobs = append(jobs, resp.GetJobs().Jobs...)
	}
	return jobs, nil
}

// jobsPage is how many jobs one request asks for.
const jobsPage = 500

// Jobs yields the cluster's jobs in order of number, with those that ended
// lately if ended is true. An error is the last thing that it yields.
func (c *Client) Jobs(ctx context.Context, ended bool) iter.Seq2[*wire.Job, error] {
	return func(yield func(*wire.Job, error) bool) {
		for after, more := uint64(0), true; more; {
			r, err := c.listJobs(ctx, &wire.ListJobs{After: after, Limit: jobsPage, Ended: ended})
			if err != nil {
				yield(nil, retry.Wrap("client.Jobs", "", err))
				return
			}
			for _, j := range r.Jobs {
				after = j.Id
				if !yield(j, nil) {
					return
				}
			}
			more = r.More && len(r.Jobs) > 0
		}
	}
}

// Job returns one job, also one that has ended; NotFound where there is none, or
// no longer.
func (c *Client) Job(ctx context.Context, id moraine.JobID) (*wire.Job, error) {
	r, err := c.listJobs(ctx, &wire.ListJobs{Id: uint64(id), Ended: true})
	if err == nil && len(r.Jobs) == 0 {
		err = &moraine.Error{Kind: moraine.NotFound}
	}
	if err != nil {
		return nil, retry.Wrap("client.Job", id.String(), err)
	}
	return r.Jobs[0], nil
}

func (c *Client) listJobs(ctx context.Context, op *wire.ListJobs) (*wire.JobsReply, error) {
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: op}})
	if err == nil && resp.GetJobs() == nil {
		err = retry.BadReply("list jobs")
	}
	return resp.GetJobs(), err
}

// CancelJob ends a job that has not ended.
func (c *Client) CancelJob(ctx context.Context, id moraine.JobID) error {
	_, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: uint64(id)}}})
	return retry.Wrap("client.CancelJob", id.String(), err)
}

// SetPolicy makes policy a directory's own; an empty one takes its own away, so
// that it inherits.
func (c *Client) SetPolicy(ctx context.Context, dir moraine.InodeID, policy *wire.Policy) error {
	_, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{
		Inode: uint64(dir), Policy: policy}}})
	return retry.Wrap("client.SetPolicy", dir.String(), err)
}

// GetPolicy returns an inode's own policy and the one in effect for it.
func (c *Client) GetPolicy(ctx context.Context, inode moraine.InodeID) (*wire.PolicyReply, error) {
	reply, err := c.io.GetPolicy(ctx, inode)
	return reply, retry.Wrap("client.GetPolicy", inode.String(), err)
}

// Tier describes the object tier as a whole.
func (c *Client) Tier(ctx context.Context) (*wire.TierReply, error) {
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})
	if err == nil && resp.GetTier() == nil {
		err = retry.BadReply("get tier")
	}
	return resp.GetTier(), retry.Wrap("client.Tier", "", err)
}

func wireInodes(ids []moraine.InodeID) []uint64 {
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = uint64(id)
	}
	return out
}
