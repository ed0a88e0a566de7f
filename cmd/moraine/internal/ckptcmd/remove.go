package ckptcmd

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// removedStep is what `ckpt rm` prints of the step that it removed.
type removedStep struct {
	Run     string `json:"run"`
	Step    uint64 `json:"step"`
	Attempt uint32 `json:"attempt"`
}

func newCkptRemoveCommand(env *cli.Env) *cobra.Command {
	var (
		step    uint64
		attempt uint32
		force   bool
	)
	cmd := &cobra.Command{
		Use:   "rm RUN --step N [--attempt A]",
		Short: "Remove a checkpoint; the links move to the one before",
		Long: `Remove a committed checkpoint as a whole. It leaves the list and the links at once; its
space returns in the background. Without --force the command refuses a checkpoint that a
program is reading, and the last good checkpoint of the run.`,
		Example: `  moraine ckpt rm moraine:///runs/llama --step 1000
  moraine ckpt rm moraine:///runs/llama --step 1000 --attempt 2 --force`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("step") {
				return cli.UsageError("no step is named: give --step N")
			}
			l, err := cli.ParseRemote(args[0])
			if err != nil {
				return err
			}
			c, err := env.DialHosts(cmd.Context(), l.Hosts, client.Config{})
			if err != nil {
				return err
			}
			defer c.Close()
			run, err := c.Stat(cmd.Context(), l.Path)
			if err != nil {
				return cli.Named(err, l)
			}
			if attempt == 0 {
				if attempt, err = attemptOf(cmd.Context(), c, run.Inode, step); err != nil {
					return noStepHint(cli.Named(err, l, run.Inode), l)
				}
			}
			_, err = c.Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
				Key: &wire.StepKey{Run: run.Inode, Attempt: attempt, Step: step}, Force: force}}})
			if err != nil {
				return cli.Named(err, l, run.Inode)
			}
			if env.Global.JSON {
				return cli.PrintJSON(env.Out, removedStep{Run: l.String(), Step: step, Attempt: attempt})
			}
			env.Note("step %d of %s is removed: attempt-%d/step-%d", step, l, attempt, step)
			return nil
		},
	}
	cmd.Flags().Uint64Var(&step, "step", 0, "step to remove")
	cmd.Flags().Uint32Var(&attempt, "attempt", 0, "its attempt (default: the one that RUN/step-N names)")
	cmd.Flags().BoolVar(&force, "force", false, "remove it although it is the run's last good "+
		"checkpoint")
	return cmd
}

// attemptOf finds the attempt whose step RUN/step-N names. Of a lost step, the latest one.
func attemptOf(ctx context.Context, c *cli.Connection, run, step uint64) (attempt uint32, err error) {
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{
		Run: run, Level: uint32(moraine.NVMe), Step: step, Exact: true}}})
	if errors.Is(err, moraine.Lost) || errors.Is(err, moraine.NotFound) {
		steps, listErr := ckpt.ListSteps(ctx, c.Client, moraine.InodeID(run), false)
		for _, s := range steps {
			if s.Step == step {
				attempt = max(attempt, s.Attempt)
			}
		}
		if listErr == nil && attempt > 0 {
			return attempt, nil
		}
	}
	if err != nil {
		return 0, err
	}
	return resp.GetStep().GetStep().GetKey().GetAttempt(), nil
}
