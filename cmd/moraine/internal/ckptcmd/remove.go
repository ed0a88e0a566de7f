package ckptcmd

import (
	"context"
	"errors"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// removedStep is what `ckpt rm` prints of the step that it removed.
type removedStep struct {
	Run     jsonname.Name `json:"run"`
	Step    uint64        `json:"step"`
	Attempt uint32        `json:"attempt"`
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
space returns in the background. Without --force the command refuses a pinned checkpoint, the one
from which the present attempt continues, and the last good checkpoint of the run. One that a
program is reading is refused also with --force, until the program ends.`,
		Example: `  moraine ckpt rm moraine:///runs/llama --step 1000
  moraine ckpt rm moraine:///runs/llama --step 1000 --attempt 2 --force`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, l, key, err := openStep(cmd, env, args[0], step, attempt)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = rawclient.Of(c).Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
				Key: keyToWire(key), Force: force}}})
			if err != nil {
				return cli.Named(err, l, key.Run)
			}
			if env.Global.JSON {
				return cli.PrintJSON(env.Out, removedStep{Run: jsonname.Name(l.String()), Step: step, Attempt: key.Attempt})
			}
			env.Note("step %d of %s is removed: attempt-%d/step-%d", step, l, key.Attempt, step)
			return nil
		},
	}
	cmd.Flags().Uint64Var(&step, "step", 0, "step to remove")
	cmd.Flags().Uint32Var(&attempt, "attempt", 0, "its attempt (default: the one that RUN/step-N names)")
	cmd.Flags().BoolVar(&force, "force", false, "remove it although it is pinned, the run's last "+
		"good checkpoint, or the one from which the attempt continues")
	return cmd
}

// openStep connects to the cluster of the run that arg names, and resolves the
// step of the flags. Attempt 0 means the attempt that RUN/step-N names. The
// caller closes the connection.
func openStep(cmd *cobra.Command, env *cli.Env, arg string, step uint64, attempt uint32) (c *cli.Connection, l cli.Location, key client.StepKey, err error) {
	if !cmd.Flags().Changed("step") {
		return nil, l, key, cli.UsageError("no step is named: give --step N")
	}
	if l, err = cli.ParseRemote(arg); err != nil {
		return nil, l, key, err
	}
	if c, err = env.DialHosts(cmd.Context(), l.Hosts, client.Config{}); err != nil {
		return nil, l, key, err
	}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	run, err := c.Stat(cmd.Context(), l.Path)
	if err != nil {
		return c, l, key, cli.Named(err, l)
	}
	if attempt == 0 {
		if attempt, err = attemptOf(cmd.Context(), c, run.Inode(), step); err != nil {
			return c, l, key, noStepHint(cli.Named(err, l, run.Inode()), l)
		}
	}
	return c, l, client.StepKey{Run: run.Inode(), Attempt: attempt, Step: step}, nil
}

func keyToWire(k client.StepKey) *wire.StepKey {
	return &wire.StepKey{Run: uint64(k.Run), Attempt: k.Attempt, Step: k.Step}
}

// attemptOf finds the attempt whose step RUN/step-N names. Of a lost step, the latest one.
func attemptOf(ctx context.Context, c *cli.Connection, run moraine.InodeID, step uint64) (attempt uint32, err error) {
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ResolveStep{ResolveStep: &wire.ResolveStep{
		Run: uint64(run), Level: uint32(moraine.NVMe), Step: step, Exact: true}}})
	if errors.Is(err, moraine.Lost) || errors.Is(err, moraine.NotFound) {
		steps, listErr := ckpt.ListSteps(ctx, c.Client, run, false)
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
