package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

// rebalanceStatus is how evenly the devices are filled.
type rebalanceStatus struct {
	State          string  `json:"state"`
	Band           float64 `json:"band_percent"`
	Limit          uint64  `json:"limit_bytes_per_second"` // to, and from, each host
	Mean           float64 `json:"mean_percent"`
	Fullest        float64 `json:"fullest_percent"`
	FullestDevice  uint32  `json:"fullest_device"`
	Emptiest       float64 `json:"emptiest_percent"`
	EmptiestDevice uint32  `json:"emptiest_device"`
	Outside        uint32  `json:"devices_outside"`
	LeftBytes      uint64  `json:"left_bytes"`
	MovedChunks    uint64  `json:"moved_chunks"`
	MovedBytes     uint64  `json:"moved_bytes"`
	BytesPerSec    uint64  `json:"bytes_per_second"`
	ETASeconds     uint64  `json:"eta_seconds"` // 0: not known
	Elapsed        uint64  `json:"elapsed_seconds"`
}

var rebalanceStates = map[wire.RebalanceState]string{
	wire.RebalanceState_REBALANCE_STATE_UNSPECIFIED: "not judged yet",
	wire.RebalanceState_REBALANCE_STATE_EVEN:        "even",
	wire.RebalanceState_REBALANCE_STATE_MOVING:      "moving",
	wire.RebalanceState_REBALANCE_STATE_PAUSED:      "paused",
	wire.RebalanceState_REBALANCE_STATE_WAITING:     "waiting",
	wire.RebalanceState_REBALANCE_STATE_STUCK:       "stuck",
}

func describeRebalance(r *wire.Rebalance) *rebalanceStatus {
	if r == nil {
		return nil
	}
	percent := func(permille uint32) float64 { return float64(permille) / 10 }
	return &rebalanceStatus{State: rebalanceStates[r.State], Band: percent(r.BandPermille), Limit: r.LimitBytesPerSecond,
		Mean: percent(r.MeanPermille), Fullest: percent(r.FullestPermille), FullestDevice: r.FullestDevice,
		Emptiest: percent(r.EmptiestPermille), EmptiestDevice: r.EmptiestDevice, Outside: r.Outside, LeftBytes: r.LeftBytes,
		MovedChunks: r.MovedChunks, MovedBytes: r.MovedBytes, BytesPerSec: r.BytesPerSecond,
		ETASeconds: (r.EtaMillis + 999) / 1000, Elapsed: r.ElapsedMillis / 1000}
}

// words describes the state in a line; empty where there is nothing to do.
func (r *rebalanceStatus) words() string {
	if r == nil || r.Outside == 0 {
		return ""
	}
	how := fmt.Sprintf("%s filled unevenly (%.1f%% in the mean, %.1f%% to %.1f%%), ",
		cli.Are(int(r.Outside), "device is", "devices are"), r.Mean, r.Emptiest, r.Fullest)
	left := fmt.Sprintf("%s moved, about %s left", cli.Size(r.MovedBytes), cli.Size(r.LeftBytes))
	switch r.State {
	case "paused":
		return how + "and moving chunks is paused (`moraine rebalance resume`); " + left
	case "waiting":
		return how + "and chunks are moved when repairs are done; " + left
	case "stuck":
		return how + "and no chunk can move to an emptier device without less protection: add hosts, " +
			"or devices to the hosts that are full"
	}
	line := how + "chunks are being moved: " + left
	if r.BytesPerSec > 0 {
		line += fmt.Sprintf(", %s/s", cli.Size(r.BytesPerSec))
	}
	if r.ETASeconds > 0 {
		line += fmt.Sprintf(", about %v to go", time.Duration(r.ETASeconds)*time.Second)
	}
	return line
}

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
	_, err = c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetRebalance{SetRebalance: op}})
	return err
}

func newRebalanceStatusCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how evenly devices are filled, the moves, and the settings",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := currentCluster(cmd.Context(), env)
			if err != nil {
				return err
			}
			r := describeRebalance(cluster.GetRebalance())
			judged := r != nil
			if !judged {
				r = &rebalanceStatus{State: rebalanceStates[wire.RebalanceState_REBALANCE_STATE_UNSPECIFIED]}
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
			if line := r.words(); line != "" {
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
