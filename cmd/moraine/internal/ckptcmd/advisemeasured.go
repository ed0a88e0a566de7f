package ckptcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
)

// measure fills in what no flag gives from what was measured of a run, and returns what its records say.
// It names the flags for what was not measured.
func (o *adviseFlags) measure(cmd *cobra.Command, env *cli.Env, args []string) (observed, error) {
	if len(args) == 0 {
		return observed{}, nil
	}
	l, err := cli.ParseRemote(args[0])
	if err != nil {
		return observed{}, err
	}
	given := cmd.Flags().Changed
	var lacks []string
	if stall, restore := !given("stall"), !given("restore") && !o.drill; stall || restore {
		lacks = o.ofAgent(cmd.Context(), l.Path, stall, restore)
	}
	mtbf := !given("mtbf") && !given("nodes")
	if len(lacks) > 0 && !mtbf {
		return observed{}, lacking(lacks) // without a request to the cluster
	}
	now, err := o.ofRecords(cmd.Context(), env, l)
	if err != nil {
		return now, err
	}
	for _, attempt := range o.planned {
		if !slices.ContainsFunc(now.launches, func(l launch) bool { return uint(l.Attempt) == attempt }) {
			return now, cli.UsageError("--planned %d: no launch of the run that is left, or its first one. `moraine ckpt ls` shows the attempts", attempt)
		}
	}
	if mtbf && now.mtbf() <= 0 {
		why := "the run has committed steps of one launch only"
		if len(now.launches) > 0 {
			why = "all its launches were planned"
		}
		lacks = append(lacks, "--mtbf of the whole job, or --nodes and --node-mtbf ("+why+")")
	}
	if mtbf {
		o.mtbf, o.launches = now.mtbf(), now.launches
		o.measured = append(o.measured, now.counted())
	}
	if err = lacking(lacks); err == nil && o.drill {
		err = o.restoreOf(cmd.Context(), env, args[0])
	}
	return now, err
}

// lacking says which flags to give; nil if none.
func lacking(flags []string) error {
	if len(flags) == 0 {
		return nil
	}
	return cli.UsageError("not all was measured: give %s", strings.Join(flags, "; and "))
}

// ofRecords reads the committed steps of a run.
func (o *adviseFlags) ofRecords(ctx context.Context, env *cli.Env, l cli.Location) (observed, error) {
	run, c, err := openReader(ctx, env, l)
	if err != nil {
		return observed{}, err
	}
	defer c.Close()
	steps, err := ckpt.ListSteps(ctx, c.Client, run.ID(), false)
	if err != nil {
		return observed{}, cli.Named(err, l, run.ID())
	}
	return observe(steps, o.planned), nil
}

// ofAgent takes the mean stall and the mean restore of a run from the agent, and returns the flags for what
// it does not have.
func (o *adviseFlags) ofAgent(ctx context.Context, run string, stall, restore bool) (lacks []string) {
	f, why := figuresOf(ctx, cli.AgentSocket(o.agent), run)
	const since = "since the agent has started"
	switch {
	case stall && f.Saves > 0:
		o.stall = time.Duration(f.StallSeconds / float64(f.Saves) * float64(time.Second))
		o.measured = append(o.measured, fmt.Sprintf("The stall is the mean of %s of this node's ranks, from Begin to Seal, %s.", cli.CountOf(int(f.Saves), "save"), since))
	case stall:
		lacks = append(lacks, "--stall ("+cmp.Or(why, "the agent has seen no save of the run "+since)+")")
	}
	switch {
	case restore && f.Restores > 0:
		o.restore = time.Duration(f.RestoreSeconds / float64(f.Restores) * float64(time.Second))
		o.measured = append(o.measured, fmt.Sprintf(
			"The restore is the mean of %s of this node's ranks %s. A job also has to be started again: add that time, and give the sum as --restore.", cli.CountOf(int(f.Restores), "restore"), since))
	case restore:
		lacks = append(lacks, "--restore, or --drill to measure it now ("+cmp.Or(why, "the agent has seen no restore of the run "+since)+")")
	}
	return lacks
}

// figuresOf asks an agent for the figures of a run; why says why it has none.
func figuresOf(ctx context.Context, socket, run string) (f agentproto.RunStatus, why string) {
	reply, err := agentproto.Ask(ctx, socket, &agentproto.Request{Status: &agentproto.Status{}})
	switch {
	case agentproto.Broken(err):
		return f, "no agent answers at " + socket + ": --agent names another one"
	case err != nil:
		return f, err.Error()
	}
	if i := slices.IndexFunc(reply.Status.Runs, func(r agentproto.RunStatus) bool { return r.Run == run }); i >= 0 {
		f = reply.Status.Runs[i]
	}
	return f, ""
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
	if err := row.restore(ctx, env, run, moraine.NVMe); err != nil {
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
