package ckptcmd

import (
	"context"
	"errors"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// prunedRow is what `ckpt prune` prints of a step.
type prunedRow struct {
	Step    uint64 `json:"step"`
	Attempt uint32 `json:"attempt"`
	Level   string `json:"level"`
	Bytes   uint64 `json:"bytes"`
	Action  string `json:"action"`
	Why     string `json:"why"`
	// Done is false with --dry-run, and for a step that stays.
	Done bool `json:"done"`
}

func newCkptPruneCommand(env *cli.Env) *cobra.Command {
	var (
		r           ruleFlags
		dryRun, all bool
	)
	cmd := &cobra.Command{
		Use:   "prune RUN",
		Short: "Remove the checkpoints that a rule does not keep",
		Long: `Apply a rule to the checkpoints of a run now, and print each that goes and why. Without keep
flags the rule is the policy in effect ("ckpt policy"), which the cluster applies by itself
too. With keep flags it is that rule alone, for this once.

These always stay: the newest good checkpoint of each level, pinned ones, the one from which
the present attempt continues, and those that a program reads.`,
		Example: `  moraine ckpt prune moraine:///runs/llama --dry-run --all
  moraine ckpt prune moraine:///runs/llama --keep-last 3 --keep-tag best`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p ckpt.Policy
			if slices.ContainsFunc(keepFlags, cmd.Flags().Changed) {
				for _, level := range []string{"nvme", "object"} {
					r.level = level
					rule, err := r.rule()
					if err != nil {
						return err
					}
					p = append(p, rule)
				}
			}
			return ckptPrune(cmd.Context(), env, args[0], p, dryRun, all)
		},
	}
	r.keepers(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would happen")
	cmd.Flags().BoolVar(&all, "all", false, "print also the checkpoints that stay, and why")
	return cmd
}

func ckptPrune(ctx context.Context, env *cli.Env, arg string, p ckpt.Policy, dryRun, all bool) error {
	run, c, l, err := openRunOf(ctx, env, arg)
	if err != nil {
		return err
	}
	defer c.Close()
	if p == nil {
		if _, p, err = ckpt.GetPolicy(ctx, c.Client, run.ID()); err != nil {
			return cli.Named(err, l, run.ID())
		}
	}
	verdicts, err := run.Retention(ctx, p)
	if err != nil {
		return cli.Named(err, l, run.ID())
	}
	var rows []prunedRow
	var failed []error
	for _, v := range verdicts {
		row := prunedRow{Step: v.Step.Step, Attempt: v.Step.Attempt, Level: v.Step.Level.String(), Bytes: v.Step.Bytes, Action: v.Action, Why: v.Why}
		if !dryRun && v.Action != "stay" {
			err := prune(ctx, c, v)
			if row.Done = err == nil; err != nil {
				row.Why = cli.Visible(err.Error())
			}
			if err != nil && !errors.Is(err, moraine.Busy) && !errors.Is(err, moraine.Immutable) {
				failed = append(failed, cli.Named(err, l, run.ID()))
			}
		}
		if all || v.Action != "stay" {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		env.Note("all %s stay", cli.CountOf(len(verdicts), "step"))
		return errors.Join(failed...)
	}
	return errors.Join(cli.List(env, rows, table.Row{"step", "attempt", "level", "size", "action", "done", "why"}, func(r prunedRow) table.Row {
		return table.Row{r.Step, r.Attempt, r.Level, cli.Size(r.Bytes), r.Action, r.Done, r.Why}
	}), errors.Join(failed...))
}

// prune removes a step, or queues the eviction of its files.
func prune(ctx context.Context, c *cli.Connection, v ckpt.Retention) error {
	if v.Action == "evict" {
		_, err := c.Jobs().Queue(ctx, client.JobEvict, v.Step.Dir)
		return err
	}
	_, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{
		Key: keyToWire(client.StepKey{Run: v.Step.Run, Attempt: v.Step.Attempt, Step: v.Step.Step})}}})
	return err
}
