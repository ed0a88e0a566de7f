// Package ckptcmd has the commands for checkpoints: ckpt save, restore, import, export, ls, show,
// watch, verify, drill, diff, wait, advise, push, mark, pin, policy, prune, rm.
//
// One path through it: `moraine ckpt restore` -> package client/ckpt finds the
// step -> each file is written beside its name, and gets the name when its checksum is right.
package ckptcmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// NewCkptCommand returns `moraine ckpt`.
func NewCkptCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ckpt",
		GroupID: cli.GroupFiles,
		Short:   "Save, adopt, list, compare, restore, verify and remove checkpoints",
		Long: `A run is a directory. A checkpoint (a step) is a directory in the run. It appears when
all ranks have written their parts and the parts cover every tensor. RUN/latest names
the newest checkpoint on the current branch.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCkptListCommand(env), newCkptShowCommand(env), newCkptSaveCommand(env), newCkptPushCommand(env), newCkptRestoreCommand(env), newCkptVerifyCommand(env), newCkptDiffCommand(env),
		newCkptImportCommand(env), newCkptExportCommand(env), newCkptWaitCommand(env), newCkptAdviseCommand(env), newCkptRemoveCommand(env))
	cmd.AddCommand(newCkptWatchCommand(env), newCkptDrillCommand(env), newCkptMarkCommand(env), newCkptPinCommand(env, true), newCkptPinCommand(env, false),
		newCkptPolicyCommand(env), newCkptPruneCommand(env), newCkptAdoptCommand(env))
	return cmd
}

// stepChoice are the flags that choose a step; without them it is the latest.
type stepChoice struct {
	step    uint64
	given   bool
	tag     string
	healthy bool
	level   moraine.Level // that it must have reached; 0: memory for a step that is named, otherwise nvme
}

func (s *stepChoice) flags(cmd *cobra.Command) {
	cmd.Flags().Uint64Var(&s.step, "step", 0, "step (default: the latest)")
	cmd.Flags().StringVar(&s.tag, "tag", "", "only a step with this tag (see ckpt mark)")
	cmd.Flags().BoolVar(&s.healthy, "healthy", false, "only a step that is marked healthy")
	level := cmd.Flags().String("level", "", "level that the step must have reached: memory, nvme or object (default: nvme, and memory with --step)")
	pre := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) (err error) {
		s.given = cmd.Flags().Changed("step")
		if *level != "" {
			if s.level, err = moraine.ParseLevel(*level); err != nil || s.level < moraine.Memory {
				return cli.UsageError("--level %q: write memory, nvme or object", *level)
			}
		}
		if pre != nil {
			return pre(cmd, args)
		}
		return nil
	}
}

// openCheckpoint resolves a committed step of the run at l.
func openCheckpoint(ctx context.Context, env *cli.Env, l cli.Location, s stepChoice) (*ckpt.Checkpoint, *cli.Connection, error) {
	run, c, err := openReader(ctx, env, l)
	if err != nil {
		return nil, nil, err
	}
	k, err := run.Resolve(ctx, s.resolveOptions())
	if err != nil {
		return nil, nil, errors.Join(noStepHint(cli.Named(err, l, run.ID()), l), c.Close())
	}
	return k, c, nil
}

// openReader opens the run at l to read it.
func openReader(ctx context.Context, env *cli.Env, l cli.Location) (*ckpt.Run, *cli.Connection, error) {
	c, err := env.DialHosts(ctx, l.Hosts, client.Config{})
	if err != nil {
		return nil, nil, err
	}
	run, err := ckpt.OpenRun(ctx, c.Client, l.Path, ckpt.RunOptions{ReadOnly: true})
	if err != nil {
		return nil, nil, errors.Join(cli.Named(err, l), c.Close())
	}
	return run, c, nil
}

// noStepHint adds to the error of a missing step how to list the steps.
func noStepHint(err error, l cli.Location) error {
	if errors.Is(err, moraine.NotFound) {
		return fmt.Errorf("%w (`moraine ckpt ls %s --all` lists the steps)", err, l)
	}
	return err
}
