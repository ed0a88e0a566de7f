// Package hostcmd has the commands for hosts and devices: host, device, drain, maintenance.
//
// One path through it: `moraine drain n3 --wait` -> one request sets the devices of the host
// to draining -> waitDrained requests the cluster's state until nothing is left on them.
package hostcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// newHostCommand returns `moraine host`, which is for whole chunkservers. `moraine device` is
// for single devices.
func newHostCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "host",
		GroupID: cli.GroupCluster,
		Short:   "List hosts, and remove one from the cluster for good",
	}, newHostListCommand(env), newHostRemoveCommand(env))
}

func newHostListCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List hosts: the states of their devices, and how much is on them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := view.CurrentCluster(cmd.Context(), env)
			if err != nil {
				return err
			}
			var rows []view.HostRow
			for _, h := range cluster.GetTopology().GetHosts() {
				rows = append(rows, view.DescribeHost(h, cluster.ClusterTimeMillis))
			}
			return cli.List(env, rows, table.Row{"host", "", "rack", "devices", "state", "used", "capacity", "chunks"}, func(r view.HostRow) table.Row {
				return table.Row{r.ID, view.Shout(r.Status), r.Rack, r.Devices, r.State, view.Known(r.Measured, cli.Size(r.Used)), cli.Size(r.Capacity), view.Known(r.Measured, r.Chunks)}
			})
		},
	}
}

func newHostRemoveCommand(env *cli.Env) *cobra.Command {
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "rm HOST",
		Short: "Remove a host from the cluster for good, once no stripe has a chunk on it",
		Long: `Retire all devices of a host. This cannot be undone. The command refuses while a stripe
has a chunk on one of them. Drain the host first ("moraine drain HOST --wait"); for a dead
host that also waits for its rebuild.

A rebuild cannot finish where too few chunks of some stripes are left, or where there is no
place for new ones. Then --accept-loss abandons the chunks on devices that are out. Set a
device that is in or draining out first ("moraine device set ID out"). Then end the
host's chunkserver.`,
		Args: cobra.ExactArgs(1),
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, args []string) error {
			return setHostState(ctx, c.Client, &wire.SetHostState{Host: args[0], State: wire.DeviceState_DEVICE_STATE_RETIRED,
				Reason: "its host was removed", AcceptLoss: acceptLoss})
		}),
	}
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "abandon, for good, the chunks that stripes "+
		"still have on its devices that are out")
	return cmd
}

func setHostState(ctx context.Context, c *client.Client, set *wire.SetHostState) error {
	_, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: set}})
	return err
}

// reasonDrained is the reason of devices that `drain` drains. --undo finds them by it.
const reasonDrained = "its host is drained"

func newDrainCommand(env *cli.Env) *cobra.Command {
	var undo, wait bool
	cmd := &cobra.Command{
		Use:     "drain HOST",
		GroupID: cli.GroupCluster,
		Short:   "Move all chunks off a host, so that it can be removed",
		Long: `Move all chunks of a host to other hosts. The host continues to serve, and takes nothing
new. It stays so until --undo, also after its chunkserver restarts. If it is dead, or
dies meanwhile, the other hosts rebuild its chunks after --repair-grace. If it
comes back, the drain continues. When it is empty, remove it with "moraine host rm HOST".

--undo does not change devices that are out or draining for another reason. It names them;
"moraine device set ID in" takes one in.`,
		Args: cobra.ExactArgs(1),
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, args []string) error {
			if undo {
				return undoDrain(ctx, env, c.Client, args[0])
			}
			set := &wire.SetHostState{Host: args[0], State: wire.DeviceState_DEVICE_STATE_DRAINING, Reason: reasonDrained}
			if err := setHostState(ctx, c.Client, set); err != nil || !wait {
				return err
			}
			return waitDrained(ctx, env, c.Client, args[0])
		}),
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "end the drain: take the host in again, with the chunks "+
		"that it still has")
	cmd.Flags().BoolVar(&wait, "wait", false, "show the progress, and return when no stripe has a "+
		"chunk on the host")
	return cmd
}

// undoDrain ends the drain of a host, and names the devices that stay out or draining for
// another reason. (A device's state may be a moment old, but not its other reasons.)
func undoDrain(ctx context.Context, env *cli.Env, c *client.Client, host string) error {
	err := setHostState(ctx, c, &wire.SetHostState{Host: host, State: wire.DeviceState_DEVICE_STATE_IN,
		Reason: "the drain of its host has ended", Undoes: reasonDrained})
	if err != nil {
		return err
	}
	cluster, err := view.GetCluster(ctx, c)
	if err != nil {
		return err
	}
	for _, h := range cluster.GetTopology().GetHosts() {
		for _, d := range h.Devices {
			held := d.State == wire.DeviceState_DEVICE_STATE_OUT || d.State == wire.DeviceState_DEVICE_STATE_DRAINING
			if h.Id == host && held && d.Reason != reasonDrained {
				env.Note("device %d is still %s: %s", d.Id, deviceState(d.State), d.Reason)
			}
		}
	}
	return nil
}

// waitDrained returns once no stripe has a chunk on a host. Moved chunks stay
// on its disks until their grace period ends, so the bytes on the disks show
// nothing.
func waitDrained(ctx context.Context, env *cli.Env, c *client.Client, host string) error {
	last := ""
	for {
		cluster, err := view.GetCluster(ctx, c)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(cluster.GetTopology().GetHosts(), func(h *wire.Host) bool { return h.Id == host })
		if i < 0 {
			return &moraine.Error{Op: "drain", Ref: host, Kind: moraine.NotFound}
		}
		left, held := uint64(0), uint64(0)
		for _, d := range cluster.Topology.Hosts[i].Devices {
			if d.State == wire.DeviceState_DEVICE_STATE_IN { // nobody counts its chunks
				return &moraine.Error{Op: "drain", Ref: host, Kind: moraine.Conflict,
					Err: fmt.Errorf("device %d is in service again (%s): somebody ended the drain", d.Id, cmp.Or(d.Reason, "no reason given"))}
			}
			left, held = left+d.Claimed, held+d.Chunks
		}
		if left == 0 {
			env.Note("%s is empty: `moraine host rm %s` removes it", host, host)
			return nil
		}
		// The exact count has a bound. Above it, the number of chunks on the disks is near
		// enough.
		line := fmt.Sprintf("%s: about %d chunks left to move%s", host, leftOf(left, held), view.EtaOf(cluster.GetHealing()))
		for _, why := range view.DescribeWaits(cluster.Waits).Stuck() {
			line += "; " + why
		}
		if line != last {
			env.Note("%s", line)
			last = line
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// leftOf is how many chunks are left. The leader counts up to 4,096 of them exactly; above
// that, it is the number of chunks on the disks.
func leftOf(counted, held uint64) uint64 {
	if counted < 4096 {
		return counted
	}
	return max(counted, held)
}

// maintenancePatience is how long an announcement retries: the leader judges the stripes of
// a large host over several attempts.
const maintenancePatience = 2 * time.Minute

func newMaintenanceCommand(env *cli.Env) *cobra.Command {
	var length time.Duration
	var reason string
	var force, end bool
	cmd := &cobra.Command{
		Use:     "maintenance HOST --for TIME",
		GroupID: cli.GroupCluster,
		Short:   "Announce that a host will be away, for a reboot",
		Long: `Announce that a host will be away. For that time the cluster rebuilds nothing because of
the host's silence, and puts nothing new on it. The maintenance ends when the host's
chunkserver has restarted.

The command refuses where a stripe would be left without a spare chunk. It counts hosts that
are down or away already, and chunks that are lost or corrupt and wait for repair. It
checks every stripe of the host. If that takes longer than the command waits, run the
command again: the check continues from there.`,
		Example: "  moraine maintenance n3 --for 30m && ssh n3 reboot",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !end && length < time.Second {
				return cli.UsageError("no time is given: write for example --for 30m")
			}
			if end {
				length = 0
			}
			c, err := env.DialHosts(cmd.Context(), "", client.Config{Patience: maintenancePatience})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = rawclient.Of(c).Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{
				Host: args[0], Millis: uint64(length.Milliseconds()), Reason: reason, Force: force}}})
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&length, "for", 0, "longest time that the host will be away (a week at most)")
	f.StringVar(&reason, "reason", "", "reason, shown to people")
	f.BoolVar(&force, "force", false, "allow it even if stripes have no redundancy meanwhile")
	f.BoolVar(&end, "end", false, "end the maintenance: the host is back, or was never away")
	return cmd
}
