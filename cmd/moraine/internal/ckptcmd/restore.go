package ckptcmd

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/filecmd"
)

// restoreOptions are the flags of `ckpt restore`.
type restoreOptions struct {
	choice   stepChoice
	fallback bool
	parts    bool
}

func newCkptRestoreCommand(env *cli.Env) *cobra.Command {
	var o restoreOptions
	cmd := &cobra.Command{
		Use:   "restore RUN DIR",
		Short: "Copy a checkpoint's files to a local directory and verify their checksums",
		Long: `Copy the files of a checkpoint into DIR, and verify the checksum of each. If "ckpt save" or
"ckpt import" made the checkpoint, these are the files that it saved, byte for byte, by their
names. (If two ranks saved files of the same name, each rank's are in DIR/rank-NNNNN.) Otherwise,
or with --parts, they are the files of the step's directory: one safetensors file for each rank,
and its blobs. The files of an adopted directory get their paths in it again. "ckpt export" writes whole tensors instead.

Nobody can remove the checkpoint meanwhile. Bytes that are damaged at one level come from the
next; a warning names them. With --fallback the command skips a damaged latest checkpoint, with a
warning, and restores the newest good one. The latest checkpoint is never one that the cluster
knows to be lost; a warning names lost checkpoints that are newer.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			if o.fallback && o.choice.given {
				return cli.UsageError("--fallback skips a damaged latest checkpoint; it cannot go with " +
					"--step")
			}
			return ckptRestore(cmd.Context(), env, l, args[1], o)
		},
	}
	o.choice.flags(cmd)
	cmd.Flags().BoolVar(&o.fallback, "fallback", false, "if the latest checkpoint is damaged or lost, "+
		"restore the newest good one before it")
	cmd.Flags().BoolVar(&o.parts, "parts", false, "copy the files of the step's directory, also if the step was saved from files")
	return cmd
}

func ckptRestore(ctx context.Context, env *cli.Env, l cli.Location, dir string, o restoreOptions) error {
	into := target{env: env, dir: dir, mode: 0o644 &^ filecmd.ReadUmask(), done: "restored"}
	run, c, err := openReader(ctx, env, l)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	restore := func(k *ckpt.Checkpoint) (err error) {
		into.copies, err = copiesOf(ctx, k, o.parts)
		if err == nil {
			err = into.write(ctx)
		}
		warnOfBadRanges(env, k)
		return err
	}
	var k *ckpt.Checkpoint
	if o.fallback {
		k, err = run.Restorable(ctx, o.choice.resolveOptions(), restore, func(s ckpt.StepInfo, err error) {
			fmt.Fprintf(env.Err, "skipped step %d of %s: %v\n", s.Step, l, cli.Visible(err.Error()))
		})
	} else if k, err = run.Resolve(ctx, o.choice.resolveOptions()); err == nil {
		err = restore(k)
	}
	if k != nil {
		defer k.Close()
	}
	if err != nil {
		return noStepHint(cli.Named(err, l, run.ID()), l)
	}
	if !o.choice.given && o.choice.tag == "" && !o.choice.healthy {
		if err := warnOfLost(ctx, env, c, run, l, k.Info); err != nil {
			return err
		}
	}
	env.Note("step %d of %s: %s, %s, in %s", k.Info.Step, l, cli.CountOf(len(into.copies), "file"), cli.Size(uint64(into.bytes())), dir)
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, describeStep(k.Info))
	}
	return nil
}

// warnOfLost names the lost checkpoints that are newer than the one restored as the latest.
func warnOfLost(ctx context.Context, env *cli.Env, c *cli.Connection, run *ckpt.Run, l cli.Location, latest ckpt.StepInfo) error {
	steps, err := ckpt.ListSteps(ctx, c.Client, run.ID(), false)
	for _, s := range steps {
		newer := s.Attempt > latest.Attempt || s.Attempt == latest.Attempt && s.Step > latest.Step
		if newer && s.State == ckpt.StepLost {
			fmt.Fprintf(env.Err, "step %d of %s is newer and lost: %s\n", s.Step, l, cli.Visible(s.Reason))
		}
	}
	return err
}

// warnOfBadRanges names the ranges that came from another level or copy than the first.
func warnOfBadRanges(env *cli.Env, k *ckpt.Checkpoint) {
	for _, b := range k.BadRanges() {
		fmt.Fprintf(env.Err, "step %d: %s, %d bytes at %d are bad at level %s: %v\n", k.Info.Step, b.File, b.Bytes, b.Offset, b.Level, cli.Visible(b.Err.Error()))
	}
}
