package ckptcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/filecmd"
	"github.com/morainefs/moraine/internal/crc"
)

func newCkptRestoreCommand(env *cli.Env) *cobra.Command {
	var (
		choice   stepChoice
		fallback bool
	)
	cmd := &cobra.Command{
		Use:   "restore RUN DIR",
		Short: "Copy a checkpoint's files to a local directory and verify their checksums",
		Long: `Copy the files of a checkpoint into DIR, and verify the checksum of each. Nobody can
remove the checkpoint meanwhile. With --fallback the command skips a damaged latest
checkpoint, with a warning, and restores the newest good one. The latest checkpoint is
never one that the cluster knows to be lost; a warning names lost checkpoints that are newer.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			if fallback && choice.given {
				return cli.UsageError("--fallback skips a damaged latest checkpoint; it cannot go with " +
					"--step")
			}
			return ckptRestore(cmd.Context(), env, l, args[1], choice, fallback)
		},
	}
	choice.flags(cmd)
	cmd.Flags().BoolVar(&fallback, "fallback", false, "if the latest checkpoint is damaged or lost, "+
		"restore the newest good one before it")
	return cmd
}

func ckptRestore(ctx context.Context, env *cli.Env, l cli.Location, dir string, choice stepChoice, fallback bool) error {
	mode := 0o644 &^ filecmd.ReadUmask()
	run, c, err := openReader(ctx, env, l)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	restore := func(k *ckpt.Checkpoint) error { return restoreFiles(ctx, env, c, l, dir, mode, k) }
	var k *ckpt.Checkpoint
	if fallback {
		k, err = run.Restorable(ctx, ckpt.ResolveOptions{}, restore, func(s ckpt.StepInfo, err error) {
			fmt.Fprintf(env.Err, "skipped step %d of %s: %v\n", s.Step, l, cli.Visible(err.Error()))
		})
	} else if k, err = run.Resolve(ctx, ckpt.ResolveOptions{Step: choice.step, Exact: choice.given}); err == nil {
		err = restore(k)
	}
	if k != nil {
		defer k.Close()
	}
	if err != nil {
		return noStepHint(cli.Named(err, l, run.ID()), l)
	}
	if !choice.given {
		if err := warnOfLost(ctx, env, c, run, l, k.Info); err != nil {
			return err
		}
	}
	env.Note("step %d of %s: %s, %s, in %s", k.Info.Step, l, cli.CountOf(len(k.Files()), "file"), cli.Size(uint64(bytesOf(k))), dir)
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

// restoreFiles copies all files of a checkpoint. It uses the step's own path, which no
// later step takes.
func restoreFiles(ctx context.Context, env *cli.Env, c *cli.Connection, l cli.Location, dir string, mode fs.FileMode, k *ckpt.Checkpoint) (err error) {
	b := env.StartBar("restored", bytesOf(k))
	defer func() { b.Finish(err) }()
	for n, f := range k.Files() {
		if err := restoreFile(ctx, c, path.Join(l.Path, k.Info.Path, f.Name), filepath.Join(dir, f.Name), mode, f, b); err != nil {
			for _, before := range k.Files()[:n] {
				err = errors.Join(err, os.Remove(filepath.Join(dir, before.Name))) // half a checkpoint is useless
			}
			return err
		}
	}
	return nil
}

// bytesOf adds up the files of a checkpoint.
func bytesOf(k *ckpt.Checkpoint) (total int64) {
	for _, f := range k.Files() {
		total += f.Size
	}
	return total
}

// restoreFile copies one file of a step to a local path. The file appears when it is
// complete and its CRC is right.
func restoreFile(ctx context.Context, c *cli.Connection, from, to string, mode fs.FileMode, f ckpt.FileInfo, b *cli.Bar) error {
	return filecmd.WriteWhole(to, mode, func(tmp *os.File) error {
		sum := &crcWriter{}
		if err := filecmd.CopyOut(ctx, c.Client, from, writers{tmp, sum}, b); err != nil {
			return err
		}
		if sum.crc != f.CRC {
			return &moraine.Error{Op: "restore", Ref: f.Name, Kind: moraine.Corrupt, Err: fmt.Errorf("CRC32C mismatch: got %08x, want %08x", sum.crc, f.CRC)}
		}
		return nil
	})
}

// crcWriter computes the checksum of what it writes.
type crcWriter struct{ crc uint32 }

// Write implements io.Writer. It never fails.
func (w *crcWriter) Write(p []byte) (int, error) {
	w.crc = crc.Update(w.crc, p)
	return len(p), nil
}

// writers writes to a file and to a checksum.
type writers struct {
	file *os.File
	sum  *crcWriter
}

// Write implements io.Writer. The checksum is of the bytes that the file has taken.
func (w writers) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	_, _ = w.sum.Write(p[:n])
	return n, err
}
