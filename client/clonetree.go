package client

import (
	"context"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// CloneTree starts a job that makes dst, which must not exist, a clone of the
// directory src and all that is below it; no byte moves. It appears when it is
// whole; until then CancelJob stops it, and what was built goes. The job goes on
// whatever becomes of this client. Unavailable: the cluster's feature level does
// not have it.
func (c *Client) CloneTree(ctx context.Context, src, dst string) (*wire.Job, error) {
	j, err := c.cloneTree(ctx, src, dst)
	return j, retry.Wrap("client.CloneTree", dst, err)
}

func (c *Client) cloneTree(ctx context.Context, src, dst string) (*wire.Job, error) {
	from, err := c.Stat(ctx, src)
	if err != nil {
		return nil, err
	}
	dst = path.Clean("/" + dst)
	parent, err := c.Stat(ctx, path.Dir(dst))
	if err != nil {
		return nil, err
	}
	resp, err := c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{
		Inode: from.Inode, Parent: parent.Inode, Name: path.Base(dst)}}})
	if err == nil && len(resp.GetJobs().GetJobs()) != 1 {
		err = retry.BadReply("clone tree")
	}
	if err != nil {
		return nil, err
	}
	return resp.GetJobs().Jobs[0], nil
}

// WaitJob asks for a job several times a second until it has ended, and returns
// it; whether it succeeded its State says. progress, unless nil, is told what each
// answer says, also the last. ctx ends the waiting, not the job: Canceled or
// Timeout then. NotFound: there is no such job, or it ended long ago. May be called
// concurrently; progress is called by the caller's goroutine.
func (c *Client) WaitJob(ctx context.Context, id moraine.JobID, progress func(*wire.Job)) (*wire.Job, error) {
	for try := 0; ; try++ {
		j, err := c.Job(ctx, id)
		if err != nil {
			return nil, err
		}
		if progress != nil {
			progress(j)
		}
		if j.State != wire.JobState_JOB_STATE_PENDING && j.State != wire.JobState_JOB_STATE_RUNNING {
			return j, nil
		}
		if !retry.Pause(ctx, c.clock, min(try, 5)) { // up to 320 ms
			return nil, retry.Wrap("client.WaitJob", id.String(), retry.ContextError(ctx, "wait for a job"))
		}
	}
}
