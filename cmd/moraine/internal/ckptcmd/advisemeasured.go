package ckptcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// measure fills in the figures of the run that were or are measured.
func (o *adviseFlags) measure(cmd *cobra.Command, env *cli.Env, args []string) error {
	if o.agent == "" && !o.drill {
		return nil
	}
	switch given := cmd.Flags().Changed; {
	case len(args) == 0:
		return cli.UsageError("--agent and --drill measure a run: name it")
	case o.agent != "" && given("stall"):
		return cli.UsageError("give --stall or --agent, not both")
	case o.drill && given("restore"):
		return cli.UsageError("give --restore or --drill, not both")
	}
	if o.agent != "" {
		if err := o.stallOf(cmd.Context(), args[0]); err != nil {
			return err
		}
	}
	if o.drill {
		return o.restoreOf(cmd.Context(), env, args[0])
	}
	return nil
}

// stallOf takes the mean stall of a run from the agent.
func (o *adviseFlags) stallOf(ctx context.Context, run string) error {
	l, err := cli.ParseRemote(run)
	if err != nil {
		return err
	}
	reply, err := agentproto.Ask(ctx, o.agent, &agentproto.Request{Status: &agentproto.Status{}})
	if err != nil {
		return err
	}
	for _, r := range reply.Status.Runs {
		if r.Run != l.Path || r.Saves == 0 {
			continue
		}
		o.stall = time.Duration(r.StallSeconds / float64(r.Saves) * float64(time.Second))
		o.measured = append(o.measured, fmt.Sprintf(
			"The stall is the mean of %s of this node's ranks, from Begin to Seal, since the agent has started.", cli.CountOf(int(r.Saves), "save")))
		return nil
	}
	return &moraine.Error{Op: "ckpt advise", Ref: l.Path, Kind: moraine.NotFound, Err: fmt.Errorf(
		"the agent at %s has seen no save of the run since it has started: give --stall", o.agent)}
}

// restoreOf restores the newest step of a run at level nvme into memory, and takes the time.
func (o *adviseFlags) restoreOf(ctx context.Context, env *cli.Env, arg string) error {
	run, c, l, err := openRunOf(ctx, env, arg)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := run.Latest(ctx, moraine.NVMe)
	if err != nil {
		return cli.Named(err, l, run.ID())
	}
	row := drillRow{exposure: exposure{Level: moraine.NVMe.String(), Step: s.Step, Attempt: s.Attempt}}
	if err := row.restore(ctx, run, moraine.NVMe); err != nil {
		return err
	}
	if row.Error != "" {
		return unrestorable([]drillRow{row})
	}
	o.restore = time.Duration(row.Seconds * float64(time.Second))
	o.measured = append(o.measured, fmt.Sprintf(
		"The restore is that of step %d, which this command has just read whole (%s). A job also has to be started again: add that time, and give the sum as --restore.",
		s.Step, cli.Size(uint64(row.Bytes))))
	return nil
}
