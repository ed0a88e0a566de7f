package ckptcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/localfiles"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

func newCkptSaveCommand(env *cli.Env) *cobra.Command {
	var (
		step        uint64
		opts        ckpt.RunOptions
		sealTimeout time.Duration
		scheme      string
		level       string
	)
	cmd := &cobra.Command{
		Use: "save RUN --step N FILE...",
		Short: "Save safetensors files (and other files, as blobs) as a step, or as one rank's part of " +
			"it",
		Long: `Save local files as a step of RUN: the tensors of *.safetensors files, and every other
file as a blob. With --world N, each of N processes saves its own part. The step appears when
all parts are saved. "ckpt restore" brings the files back as they were.

The command reads the files in place, and needs no memory for them, except with --agent. Do not
change them meanwhile.`,
		Example: "  moraine ckpt save moraine:///runs/demo --step 100 model.safetensors rng.bin",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("step") {
				return cli.UsageError("no step is named: give --step N")
			}
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			if opts.Launch.Name == "" {
				opts.Launch = ckpt.LaunchFromEnv(os.Getenv)
			}
			if opts.Launch.Name == "" && opts.World <= 1 {
				// One process that saves alone is a launch of its own.
				opts.Launch.Name = fmt.Sprintf("cli-%d-%d", os.Getpid(), time.Now().UnixNano())
			}
			cfg, err := cli.SchemeConfig(scheme)
			if err != nil {
				return err
			}
			until, err := moraine.ParseLevel(level)
			if err != nil {
				return cli.AsWrongUse(err)
			}
			return ckptSave(cmd.Context(), env, l, cfg, step, args[1:], opts, sealTimeout, until)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&step, "step", 0, "number of the step")
	f.Uint32Var(&opts.Rank, "rank", 0, "this process's rank")
	f.Uint32Var(&opts.World, "world", 1, "number of ranks")
	f.StringVar(&opts.Launch.Name, "launch", "", "string that the ranks of one launch share (default: "+
		"from the scheduler's variables)")
	f.BoolVar(&opts.Takeover, "takeover", false, "take over from the current attempt, even if it still has "+
		"live sessions")
	f.StringVar(&scheme, "scheme", "", cli.SchemeUsage)
	f.StringVar(&opts.Agent, "agent", "", "unix socket of the node's agent, which then keeps and writes the files (default: none)")
	f.StringVar(&level, "level", "nvme", "level to wait for: memory, nvme, object, or local (in the agent's memory)")
	f.DurationVar(&sealTimeout, "seal-timeout", 10*time.Minute, "abort the step when no rank has "+
		"sealed for this long")
	return cmd
}

func ckptSave(ctx context.Context, env *cli.Env, l cli.Location, cfg client.Config, step uint64, files []string, opts ckpt.RunOptions, sealTimeout time.Duration, level moraine.Level) error {
	// A launch that cannot save must not take the place of one that can.
	local, err := localfiles.Open(files)
	if err != nil {
		return err
	}
	defer local.Close() // after run.Close: then no save reads them
	c, err := env.DialHosts(ctx, l.Hosts, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	run, err := ckpt.OpenRun(ctx, c.Client, l.Path, opts)
	if errors.Is(err, moraine.Busy) {
		err = fmt.Errorf("%w (give --takeover if you know that the other launch is dead)", err)
	}
	if err != nil {
		return err
	}
	defer run.Close(ctx) //nolint:errcheck // the save was waited for, or its error is returned
	lent := opts.Agent == ""
	save, err := run.Begin(ctx, step, ckpt.BeginOptions{SealTimeout: sealTimeout, Bytes: local.Bytes(), Lent: lent})
	if err != nil {
		return err
	}
	if err := local.AddTo(ctx, save, lent); err != nil {
		save.Abort(err)
		return err
	}
	if err := save.Seal(ctx); err != nil {
		return err
	}
	info, err := save.Wait(ctx, level)
	if err != nil {
		return err
	}
	if level == moraine.Local {
		env.Note("step %d of %s is in the memory of this node: rank %d of %d. `moraine agent status` shows how it goes on", step, l, opts.Rank, opts.World)
		return nil
	}
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, describeStep(info))
	}
	env.Note("step %d of %s is committed at level %s: %s in %s", info.Step, l, info.Level, cli.Size(info.Bytes), info.Path)
	if info.Degraded > 0 {
		env.Note("%d of its stripes are below full protection (survive the loss of %d). The cluster "+
			"repairs them when enough hosts are up", info.Degraded, info.Protects)
	}
	return nil
}
