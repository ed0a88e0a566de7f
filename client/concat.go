package client

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// assemble fills the file with the ranges and gives it its name. It uses one Clone for few
// ranges, a job of the service for many, and steps if they are too many for one job.
func (f *File) assemble(ctx context.Context, todo []*wire.CloneRange, consume moraine.InodeID) (a *wire.Attr, consumed bool, err error) {
	if consume == 0 && len(todo) <= maxCloneRanges {
		a, err := f.cloneStep(ctx, f.attr.Generation, todo, true)
		if !retry.IsKind(err, moraine.TooLarge) {
			return a, false, err
		}
	}
	if len(todo) <= wire.MaxConcatRanges {
		a, err := f.concat(ctx, todo, consume)
		return a, consume != 0, err
	}
	a, err = f.clone(ctx, todo)
	return a, false, err
}

// concat lets the service do all of it, in a job if necessary.
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
		// The service remembers a limited number of ended jobs and has forgotten this one. Stat
		// finds a file only after the job made it whole.
		if a, err := f.c.Inodes().stat(ctx, f.Inode()); err == nil {
			return a, nil
		}
		return nil, err
	case err != nil:
		return nil, err
	case j.State == JobCanceled:
		return nil, &moraine.Error{Kind: moraine.Canceled, Err: errors.New(j.Error)}
	case j.State != JobDone:
		return nil, &moraine.Error{Kind: j.Failed, Err: errors.New(j.Error)}
	}
	return f.made(ctx, j)
}

// forget releases the unlinked file, if it still exists. Otherwise the session would keep it
// until the session ends. Nothing depends on its success.
func (f *File) forget(ctx context.Context) {
	if f.session == f.c.meta.Current() && ctx.Err() == nil {
		_ = f.c.Inodes().Release(ctx, f.Inode())
	}
}

// made returns the file that a job made. If the file was removed or changed since, the client
// only knows its number and the generation that it had.
func (f *File) made(ctx context.Context, j Job) (*wire.Attr, error) {
	a, err := f.c.Inodes().stat(ctx, j.Inode)
	switch {
	case retry.IsKind(err, moraine.NotFound) || err == nil && a.Generation != uint64(j.generation):
		return &wire.Attr{Inode: uint64(j.Inode), Type: wire.FileType_FILE_TYPE_REGULAR, Generation: uint64(j.generation)}, nil
	case err != nil:
		return nil, err
	}
	return a, nil
}
