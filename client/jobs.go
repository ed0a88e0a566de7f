package client

import (
	"context"
	"iter"
	"path"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Jobs are the jobs of the cluster. Its methods may be called concurrently.
type Jobs struct{ c *Client }

// Jobs returns the jobs of the cluster.
func (c *Client) Jobs() Jobs { return Jobs{c} }

// moveBatch bounds the inodes in one request.
const moveBatch = 256

// Queue makes a job of kind JobFlush, JobStage or JobEvict for each file. For a directory it makes one
// job that covers every file below it. If such a job is already queued, Queue returns that one.
// The jobs are in the order of the inodes.
func (j Jobs) Queue(ctx context.Context, kind JobKind, inodes ...moraine.InodeID) ([]Job, error) {
	var jobs []Job
	for batch := range slices.Chunk(inodes, moveBatch) {
		resp, err := j.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{
			Kind: kind.wire(), Inodes: wireInodes(batch)}}})
		if err == nil && resp.GetJobs() == nil {
			err = retry.BadReply("queue move")
		}
		if err != nil {
			return jobs, retry.Wrap("client.QueueMove", batch[0].String(), err)
		}
		for _, w := range resp.GetJobs().Jobs {
			jobs = append(jobs, jobOf(w))
		}
	}
	return jobs, nil
}

// jobsPage is how many jobs one request returns.
const jobsPage = 500

// List yields the cluster's jobs in order of number, with recently ended ones if ended is true.
// An error is the last thing that it yields.
func (j Jobs) List(ctx context.Context, ended bool) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		for after, more := uint64(0), true; more; {
			r, err := j.list(ctx, &wire.ListJobs{After: after, Limit: jobsPage, Ended: ended})
			if err != nil {
				yield(Job{}, retry.Wrap("client.Jobs", "", err))
				return
			}
			for _, j := range r.Jobs {
				after = j.Id
				if !yield(jobOf(j), nil) {
					return
				}
			}
			more = r.More && len(r.Jobs) > 0
		}
	}
}

// Get returns one job, also one that has ended. NotFound: there is no such job, or the service
// has forgotten it.
func (j Jobs) Get(ctx context.Context, id moraine.JobID) (Job, error) {
	r, err := j.list(ctx, &wire.ListJobs{Id: uint64(id), Ended: true})
	if err == nil && len(r.Jobs) == 0 {
		err = &moraine.Error{Kind: moraine.NotFound}
	}
	if err != nil {
		return Job{}, retry.Wrap("client.Job", id.String(), err)
	}
	return jobOf(r.Jobs[0]), nil
}

func (j Jobs) list(ctx context.Context, op *wire.ListJobs) (*wire.JobsReply, error) {
	resp, err := j.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: op}})
	if err == nil && resp.GetJobs() == nil {
		err = retry.BadReply("list jobs")
	}
	return resp.GetJobs(), err
}

// Cancel ends a job that has not ended.
func (j Jobs) Cancel(ctx context.Context, id moraine.JobID) error {
	_, err := j.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: uint64(id)}}})
	return retry.Wrap("client.CancelJob", id.String(), err)
}

func wireInodes(ids []moraine.InodeID) []uint64 {
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = uint64(id)
	}
	return out
}

// CloneTree starts a job that makes dst, which must not exist, a clone of the directory src and
// all below it; no byte moves. dst appears when it is whole. Until then Cancel stops the job
// and removes what it built. The job continues even if this client stops.
func (j Jobs) CloneTree(ctx context.Context, src, dst string) (Job, error) {
	job, err := j.cloneTree(ctx, src, dst, false)
	return job, retry.Wrap("client.CloneTree", dst, err)
}

func (j Jobs) cloneTree(ctx context.Context, src, dst string, snapshot bool) (Job, error) {
	from, err := j.c.paths.find(ctx, src, true)
	if err != nil {
		return Job{}, retry.Wrap("client.Stat", src, err)
	}
	dst = path.Clean("/" + dst)
	parent, err := j.c.paths.find(ctx, path.Dir(dst), true)
	if err != nil {
		return Job{}, retry.Wrap("client.Stat", path.Dir(dst), err)
	}
	resp, err := j.c.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{
		Inode: from.Inode, Parent: parent.Inode, Name: path.Base(dst), Snapshot: snapshot}}})
	if err == nil && len(resp.GetJobs().GetJobs()) != 1 {
		err = retry.BadReply("clone tree")
	}
	if err != nil {
		return Job{}, err
	}
	return jobOf(resp.GetJobs().Jobs[0]), nil
}

// Wait polls a job several times a second until it has ended, and returns it; its State says
// whether it succeeded. It also returns a flush that is Blocked. Wait calls progress, unless it is
// nil, with each answer, including the last, in the caller's goroutine. ctx ends the waiting, not
// the job; the error is then Canceled or Timeout. NotFound: there is no such job, or it ended long
// ago. May be called concurrently.
func (j Jobs) Wait(ctx context.Context, id moraine.JobID, progress func(Job)) (Job, error) {
	for try := 0; ; try++ {
		job, err := j.Get(ctx, id)
		if err != nil {
			return Job{}, err
		}
		if progress != nil {
			progress(job)
		}
		if job.Blocked() || job.Ended() {
			return job, nil
		}
		if !retry.Pause(ctx, j.c.clock, min(try, 5)) { // up to 320 ms
			return Job{}, retry.Wrap("client.WaitJob", id.String(), retry.ContextError(ctx, "wait for a job"))
		}
	}
}
