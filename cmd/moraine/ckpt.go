package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/spf13/cobra"
)

func (a *app) ckptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ckpt",
		GroupID: groupFiles,
		Short:   "Save, list, restore, verify and remove checkpoints",
		Long: `A run is a directory. A checkpoint (a step) is a directory in the run. It appears when
all ranks have written their parts and the parts cover every tensor. RUN/latest names
the newest checkpoint on the current branch.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.ckptListCommand(), a.ckptShowCommand(), a.ckptSaveCommand(), a.ckptRestoreCommand(), a.ckptVerifyCommand(), a.ckptRemoveCommand())
	return cmd
}

// stepChoice are the flags that choose a step; without them it is the latest.
type stepChoice struct {
	step    uint64
	given   bool
	attempt uint32
}

func (s *stepChoice) flags(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&s.step, "step", 0, "step (default: the latest)")
	pre := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		s.given = cmd.Flags().Changed("step")
		if pre != nil {
			return pre(cmd, args)
		}
		return nil
	}
}

// openCheckpoint resolves a committed step of the run at l.
func (a *app) openCheckpoint(ctx context.Context, l location, s stepChoice) (*ckpt.Checkpoint, *connection, error) {
	run, c, err := a.openReader(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	k, err := run.Resolve(ctx, ckpt.ResolveOptions{Step: s.step, Exact: s.given})
	if err != nil {
		return nil, nil, errors.Join(noStepHint(named(err, l, uint64(run.ID())), l), c.Close())
	}
	return k, c, nil
}

// openReader opens the run at l to read it.
func (a *app) openReader(ctx context.Context, l location) (*ckpt.Run, *connection, error) {
	c, err := a.dialHosts(ctx, l.hosts, client.Config{})
	if err != nil {
		return nil, nil, err
	}
	run, err := ckpt.OpenRun(ctx, c.Client, l.path, ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return nil, nil, errors.Join(named(err, l), c.Close())
	}
	return run, c, nil
}

// noStepHint adds to the error of a missing step how to list the steps.
func noStepHint(err error, l location) error {
	if errors.Is(err, moraine.NotFound) {
		return fmt.Errorf("%w (`moraine ckpt ls %s --all` lists the steps)", err, l)
	}
	return err
}
