// Package adopt makes directories that a framework wrote steps of a run. One path through it: Dir compares
// the files with the one that is written last (last.go), and asks the service for a job -> the leader
// clones the files into an unfinished step, and a mover checks that they are a whole checkpoint
// (package ckpt) -> Dir returns the committed step.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// Format says what wrote a directory, and so what makes it complete.
type Format string

// The formats of directories that become steps.
const (
	DCP      Format = "dcp"      // torch.distributed.checkpoint: complete with .metadata
	Megatron Format = "megatron" // the directory of one iteration
	HF       Format = "hf"       // safetensors files, with model.safetensors.index.json if they are several
)

var formats = map[Format]wire.CheckpointFormat{
	DCP: wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP, Megatron: wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON, HF: wire.CheckpointFormat_CHECKPOINT_FORMAT_HF,
}

// Options says which step a directory becomes.
type Options struct {
	Run    string // path of the run's directory; it is made if it is missing
	Step   uint64
	Format Format // empty: the one whose files are there
	// Complete: the caller knows that all ranks have written, and that nothing writes there. Without it, a
	// directory of Megatron needs the tracker file above to say so, and no file of dcp or Megatron may
	// have changed after the one that is written last.
	Complete bool
}

// Dir makes the files below the directory dir a committed step, and returns it. No byte is read or
// moved: the step shares the bytes. The directory stays as it is, and its files may change and go. It
// joins the current attempt of the run and fences nobody.
//
// Incomplete: the directory is no whole checkpoint, and the text says what is missing. Conflict: a
// file changed meanwhile, or the step was adopted from other content. Exists: the step is there
// already. ctx ends the waiting, not the work: its end may still commit the step. May be called
// concurrently; two calls for one directory and step share the work.
func Dir(ctx context.Context, c *client.Client, dir string, o Options) (ckpt.StepInfo, error) {
	info, err := makeStep(ctx, c, dir, o)
	if err != nil {
		return ckpt.StepInfo{}, &moraine.Error{Op: "adopt.Dir", Ref: dir, Kind: moraine.KindOf(err), Err: err}
	}
	return info, nil
}

func makeStep(ctx context.Context, c *client.Client, dir string, o Options) (ckpt.StepInfo, error) {
	src, err := c.Stat(ctx, dir)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	if o.Format == "" {
		if o.Format, err = detectFormat(ctx, c, dir); err != nil {
			return ckpt.StepInfo{}, err
		}
	}
	format, ok := formats[o.Format]
	if !ok {
		return ckpt.StepInfo{}, invalid("format %q: it must be dcp, megatron or hf", o.Format)
	}
	if !o.Complete {
		if err := (directory{c, dir}).checkLast(ctx, o.Format); err != nil {
			return ckpt.StepInfo{}, err
		}
	}
	run := path.Clean("/" + o.Run)
	if run == "/" {
		return ckpt.StepInfo{}, invalid("a run is a directory below the root")
	}
	parent, err := c.MkdirAll(ctx, path.Dir(run), 0o755)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_AdoptStep{AdoptStep: &wire.AdoptStep{
		Dir: uint64(src.Inode()), Parent: uint64(parent.Inode()), Name: path.Base(run), Step: o.Step, Format: format}}})
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	if len(resp.GetJobs().GetJobs()) != 1 {
		return ckpt.StepInfo{}, &moraine.Error{Kind: moraine.Internal, Err: errors.New("the reply has no job")}
	}
	j, err := c.Jobs().Wait(ctx, moraine.JobID(resp.GetJobs().GetJobs()[0].GetId()), nil)
	switch {
	case err != nil:
		return ckpt.StepInfo{}, err
	case j.State == client.JobCanceled:
		return ckpt.StepInfo{}, &moraine.Error{Kind: moraine.Canceled, Err: errors.New(j.Error)}
	case j.State != client.JobDone:
		return ckpt.StepInfo{}, &moraine.Error{Kind: j.Failed, Err: errors.New(j.Error)}
	}
	at, err := c.Stat(ctx, run)
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	return committedStep(ctx, c, at.Inode(), o.Step)
}

// committedStep returns the committed step of a number that a reader finds now.
func committedStep(ctx context.Context, c *client.Client, run moraine.InodeID, step uint64) (ckpt.StepInfo, error) {
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{
		Run: uint64(run), Step: step, Exact: true}}})
	if err != nil {
		return ckpt.StepInfo{}, err
	}
	key := resp.GetStep().GetStep().GetKey()
	return ckpt.GetStep(ctx, c, client.StepKey{Run: run, Attempt: key.GetAttempt(), Step: step})
}

func invalid(format string, args ...any) error {
	return &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

// detectFormat returns the format whose files are in a directory.
func detectFormat(ctx context.Context, c *client.Client, dir string) (Format, error) {
	for _, try := range []struct {
		file   string
		format Format
	}{{adopted.DCPMetadata, DCP}, {adopted.HFIndex, HF}, {adopted.HFModel, HF}} {
		_, err := c.Stat(ctx, path.Join(dir, try.file))
		if err == nil {
			return try.format, nil
		}
		if !errors.Is(err, moraine.NotFound) {
			return "", err
		}
	}
	return "", &moraine.Error{Kind: moraine.Incomplete, Err: fmt.Errorf(
		"it has none of %s, %s and %s: it is not complete, or name the format megatron", adopted.DCPMetadata, adopted.HFIndex, adopted.HFModel)}
}
