package ckptcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// verified verifies a checkpoint, and shows on a bar how much of it was read.
func verified(ctx context.Context, env *cli.Env, k *ckpt.Checkpoint) (ckpt.Report, error) {
	var size int64
	for _, f := range k.Files() {
		size += f.Size
	}
	stop := env.StartBar("verified", size).Follow(func() (done, total int64, ok bool) { return k.BytesRead(), size, true })
	report, err := k.Verify(ctx)
	stop(err)
	return report, err
}

func newCkptVerifyCommand(env *cli.Env) *cobra.Command {
	var choice stepChoice
	cmd := &cobra.Command{
		Use:   "verify RUN",
		Short: "Read every byte of a checkpoint and compare it with all checksums",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			k, c, err := openCheckpoint(cmd.Context(), env, l, choice)
			if err != nil {
				return err
			}
			defer c.Close()
			defer k.Close()
			start := time.Now()
			report, err := verified(cmd.Context(), env, k)
			if err != nil {
				return err
			}
			if env.Global.JSON {
				return cli.PrintJSON(env.Out, map[string]any{"step": k.Info.Step, "attempt": k.Info.Attempt, "files": report.Files,
					"tensors": report.Tensors, "bytes": report.Bytes, "bytes_without_digest": report.Undigested, "digest": fmt.Sprintf("%x", report.Digest)})
			}
			env.Note("step %d of %s is intact: %s in %s, %s read and checked in %v\ndigest %x",
				k.Info.Step, l, cli.CountOf(int(report.Tensors), "tensor"), cli.CountOf(int(report.Files), "file"), cli.Size(uint64(report.Bytes)), time.Since(start).Round(time.Millisecond), report.Digest)
			if report.Undigested > 0 {
				env.Note("%s of it are adopted files: the step has no digest of them, and the checksums of their chunks are right", cli.Size(uint64(report.Undigested)))
			}
			return nil
		},
	}
	choice.flags(cmd)
	return cmd
}
