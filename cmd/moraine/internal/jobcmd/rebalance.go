package jobcmd

import (
	"context"
	"strconv"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

func newRebalanceCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rebalance",
		GroupID: cli.GroupCluster,
		Short:   "Moves of chunks from full devices to empty ones: show, pause, resume, set",
		Long: `The band is around the mean fill of all devices. Where a device is outside it, movers move
chunks from the fullest devices to the emptiest, by themselves. So an added device gets its share.
No stripe is less protected because of it, and repairs go first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	steer := func(use, short string, paused bool) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return setRebalance(cmd.Context(), env, &wire.SetRebalance{Paused: &paused})
		}}
	}
	cmd.AddCommand(newRebalanceStatusCommand(env), newRebalanceSetCommand(env),
		steer("pause", "Move nothing more until resume; moves under way are finished", true),
		steer("resume", "Continue to move chunks", false))
	return cmd
}

func setRebalance(ctx context.Context, env *cli.Env, op *wire.SetRebalance) error {
	c, err := env.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetRebalance{SetRebalance: op}})
	return err
}

func newRebalanceStatusCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how evenly devices are filled, the moves, and the settings",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := view.CurrentCluster(cmd.Context(), env)
			if err != nil {
				return err
			}
			r := view.DescribeRebalance(cluster.GetRebalance())
			judged := r != nil
			if !judged {
				r = &view.RebalanceStatus{State: view.RebalanceStates[wire.RebalanceState_REBALANCE_STATE_UNSPECIFIED]}
			}
			if env.Global.JSON {
				return cli.PrintJSON(env.Out, r)
			}
			if !judged {
				env.Note("state      %s: the metadata leader has just started, and looks within about 10 "+
					"s", r.State)
				return nil
			}
			env.Note("state      %s", r.State)
			env.Note("settings   a band of %.1f%% around the mean, %s/s to and from each host", r.Band, cli.Size(r.Limit))
			env.Note("filled     %.1f%% in the mean; device %d %.1f%%, device %d %.1f%%", r.Mean, r.EmptiestDevice, r.Emptiest, r.FullestDevice, r.Fullest)
			env.Note("moved      %d chunks, %s; about %s left", r.MovedChunks, cli.Size(r.MovedBytes), cli.Size(r.LeftBytes))
			if line := r.Words(); line != "" {
				env.Note("%s", line)
			}
			return nil
		},
	}
}

func newRebalanceSetCommand(env *cli.Env) *cobra.Command {
	var band string
	var bandwidth cli.SizeFlag
	cmd := &cobra.Command{
		Use:     "set [--band PERCENT] [--bandwidth BYTES]",
		Short:   "Change how evenly devices are filled, and how fast chunks move",
		Example: "  moraine rebalance set --band 3 --bandwidth 200MiB",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			op := &wire.SetRebalance{}
			if band != "" {
				percent, err := strconv.ParseFloat(strings.TrimSuffix(band, "%"), 64)
				if err != nil || percent < 0 || percent > 100 {
					return cli.UsageError("--band %s: write percentage points, such as 5", band)
				}
				op.BandPermille = proto.Uint32(uint32(percent*10 + 0.5))
			}
			if bandwidth > 0 {
				op.BytesPerSecond = proto.Uint64(uint64(bandwidth))
			}
			if op.BandPermille == nil && op.BytesPerSecond == nil {
				return cli.UsageError("nothing to set is given: give --band or --bandwidth")
			}
			return setRebalance(cmd.Context(), env, op)
		},
	}
	cmd.Flags().StringVar(&band, "band", "", "percentage points that a device may be fuller or emptier "+
		"than the mean (default 5)")
	cmd.Flags().Var(&bandwidth, "bandwidth", "bytes a second that move to each host, and from each "+
		"host (default 64MiB)")
	return cmd
}
