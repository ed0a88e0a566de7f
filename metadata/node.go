package metadata

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/movers"
	"github.com/morainefs/moraine/transport/wire"
)

// A thief may have a storage host with its certificate. A chunkserver may therefore send only the
// requests that its work needs; those marked `people` in the op table exclude it. Requests that
// clients send too are limited to that work. A chunkserver reads the files of jobs that it leased,
// creates files without a name, and has evicted files staged.

// mayReadForJob fails if a chunkserver requests extents of a file that does not
// belong to the job that it names. It also fails if the chunkserver does not
// have the job now.
func (l *leader) mayReadForJob(ctx context.Context, c *lead.Call) error {
	if !c.IsChunkserver() {
		return nil
	}
	if err := l.Store.ReadBarrier(ctx); err != nil {
		return err
	}
	asked, may := c.Req.GetGetExtents(), false
	err := l.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		may, err = movers.IsOfJob(l.Machine.View(r), c.Caller.Node, moraine.JobID(asked.Job), moraine.InodeID(asked.Inode))
		return err
	})
	if err == nil && !may {
		err = &moraine.Error{Ref: moraine.InodeID(asked.Inode).String(), Kind: moraine.PermissionDenied,
			Err: fmt.Errorf("node %[2]q has no lease of job %[1]s, or the job is not for this file", moraine.JobID(asked.Job), c.Caller.Node)}
	}
	return err
}

// ownFile fails if a chunkserver commits to any file other than an unnamed one of its session.
func (l *leader) ownFile(c *lead.Call) error {
	if !c.IsChunkserver() {
		return nil
	}
	op, own := c.Req.GetCommit(), false
	err := l.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		own, err = movers.OwnedBy(l.Machine.View(r), moraine.SessionID(c.Req.Session), moraine.InodeID(op.Inode))
		return err
	})
	if err == nil && (!own || op.Link != nil) {
		err = lead.Denied("a chunkserver commits only to files without a name that it made")
	}
	return err
}

// create creates a named inode, or a file without a name.
func (l *leader) create(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if c.IsChunkserver() && !c.Req.GetCreate().GetUnlinked() {
		return nil, lead.Denied("a chunkserver makes only files without a name")
	}
	return l.Mutate(ctx, c)
}

// queueMove queues moves of files between tiers.
func (l *leader) queueMove(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if c.IsChunkserver() && c.Req.GetQueueMove().GetKind() != wire.JobKind_JOB_KIND_STAGE {
		return nil, lead.Denied("a chunkserver has files staged, and nothing else moved")
	}
	return l.Mutate(ctx, c)
}
