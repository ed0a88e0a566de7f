package client

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// assemble makes the ranges the content of the file, and gives it its name: few
// ranges by one Clone, many by a job of the service, and step by step where the
// cluster's feature level has no such job, or one takes fewer.
func (f *File) assemble(ctx context.Context, todo []*wire.CloneRange, consume moraine.InodeID) (a *wire.Attr, consumed bool, err error) {
	if consume == 0 && len(todo) <= maxCloneRanges {
		a, err := f.cloneStep(ctx, f.attr.Generation, todo, true)
		if !retry.IsKind(err, moraine.TooLarge) {
			return a, false, err
		}
	}
	if len(todo) <= wire.MaxConcatRanges {
		a, err := f.concat(ctx, todo, consume)
		if !retry.IsKind(err, moraine.Unimplemented) {
			return a, consume != 0, err
		}
	}
	a, err = f.clone(ctx, todo)
	return a, false, err
}

// concat has the service do it all.
func (f *File) concat(ctx context.Context, todo []*wire.CloneRange, consume moraine.InodeID) (*wire.Attr, error) {
	op := &wire.Concat{Inode: f.attr.Inode, Ranges: todo, Link: f.link, Consume: uint64(consume)}
	resp, err := f.c.meta.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: op}}, f.session)
	if err != nil {
		return nil, err
	}
	if a := resp.GetCommit().GetAttr(); a != nil {
		return a, nil
	}
	if len(resp.GetJobs().GetJobs()) != 1 {
		return nil, retry.BadReply("concat")
	}
	j, err := f.c.Jobs().Wait(ctx, moraine.JobID(resp.GetJobs().Jobs[0].Id), nil)
	switch {
	case retry.IsKind(err, moraine.NotFound):
		// The service remembers so many jobs that ended, and this is none of them any
		// more. What it made can be looked at; before it was whole it could not be.
		if a, err := f.c.Inodes().Stat(ctx, f.Inode()); err == nil {
			return a, nil
		}
		return nil, err
	case err != nil:
		return nil, err
	case j.State == wire.JobState_JOB_STATE_CANCELED:
		return nil, &moraine.Error{Kind: moraine.Canceled, Err: errors.New(j.Error)}
	case j.State != wire.JobState_JOB_STATE_DONE:
		return nil, &moraine.Error{Kind: moraine.Kind(j.Failed), Err: errors.New(j.Error)}
	}
	return f.made(ctx, j)
}

// forget lets the file without a name go, if it is there yet: else the session
// would keep it to its end. Nothing depends on it.
func (f *File) forget(ctx context.Context) {
	if f.session == f.c.meta.Current() && ctx.Err() == nil {
		_ = f.c.Inodes().Release(ctx, f.Inode())
	}
}

// made returns the file that a job made. Where it was removed or changed since,
// its number and the generation that it had are what is left to tell.
func (f *File) made(ctx context.Context, j *wire.Job) (*wire.Attr, error) {
	a, err := f.c.Inodes().Stat(ctx, moraine.InodeID(j.Inode))
	switch {
	case retry.IsKind(err, moraine.NotFound) || err == nil && a.Generation != j.Generation:
		return &wire.Attr{Inode: j.Inode, Type: wire.FileType_FILE_TYPE_REGULAR, Generation: j.Generation}, nil
	case err != nil:
		return nil, err
	}
	return a, nil
}
