package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// hostCommand is about chunkservers as a whole; devices are one by one under
// `moraine device`.
func (a *app) hostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "host",
		GroupID: groupCluster,
		Short:   "List hosts, and take one out of the cluster for good",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.hostListCommand(), a.hostRemoveCommand())
	return cmd
}

func (a *app) hostListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List hosts: what state their devices are in, and what they hold",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := a.cluster(cmd.Context())
			if err != nil {
				return err
			}
			var rows []hostRow
			for _, h := range cluster.GetTopology().GetHosts() {
				rows = append(rows, describeHost(h, cluster.ClusterTimeMillis))
			}
			return list(a, rows, table.Row{"host", "", "rack", "devices", "state", "used", "capacity", "chunks"}, func(r hostRow) table.Row {
				return table.Row{r.ID, shout(r.Status), r.Rack, r.Devices, r.State, known(r.Measured, size(r.Used)), size(r.Capacity), known(r.Measured, r.Chunks)}
			})
		},
	}
}

// hostRow is a host as `host ls` prints it.
type hostRow struct {
	ID       string `json:"id"`
	Status   string `json:"status"` // up, down or unknown
	Alive    bool   `json:"alive"`  // it is known to be up
	Rack     string `json:"rack,omitempty"`
	Devices  int    `json:"devices"`    // not retired
	State    string `json:"state"`      // in, or what it is instead
	Used     uint64 `json:"used_bytes"` // of its devices in use, as the capacity and the chunks
	Capacity uint64 `json:"capacity_bytes"`
	Chunks   uint64 `json:"chunks"`
	// Measured: all of its devices in use have said how full they are; else it is a guess.
	Measured bool `json:"usage_known"`
	// AwaySeconds is how long its maintenance goes on.
	AwaySeconds int64 `json:"maintenance_seconds,omitempty"`
}

func describeHost(h *wire.Host, clusterTime uint64) hostRow {
	r := hostRow{ID: h.Id, Status: serverStatus(h.Alive, h.Heard), Rack: h.Rack, State: "in", Measured: true}
	r.Alive = r.Status == serverUp
	states := map[wire.DeviceState]int{}
	for _, d := range h.Devices {
		if d.State == wire.DeviceState_DEVICE_STATE_RETIRED {
			continue
		}
		r.Devices++
		states[d.State]++
		if inService(d) {
			r.Used, r.Capacity, r.Chunks = r.Used+d.Used, r.Capacity+d.Capacity, r.Chunks+d.Chunks
			r.Measured = r.Measured && d.Measured
		}
	}
	switch {
	case r.Devices == 0:
		r.State = "removed"
	case h.CertRevoked:
		r.State = "certificate revoked"
	case h.MaintenanceUntil > clusterTime:
		left := time.Duration(h.MaintenanceUntil-clusterTime) * time.Millisecond
		r.AwaySeconds = int64(left.Round(time.Second).Seconds())
		r.State = fmt.Sprintf("maintenance, %v left", left.Round(time.Second))
	case states[wire.DeviceState_DEVICE_STATE_DRAINING] == r.Devices:
		r.State = "draining"
	case states[wire.DeviceState_DEVICE_STATE_OUT] == r.Devices:
		r.State = "out"
	case states[wire.DeviceState_DEVICE_STATE_IN] < r.Devices:
		r.State = fmt.Sprintf("%d in, %d draining, %d out", states[wire.DeviceState_DEVICE_STATE_IN],
			states[wire.DeviceState_DEVICE_STATE_DRAINING], states[wire.DeviceState_DEVICE_STATE_OUT])
	}
	return r
}

func (a *app) hostRemoveCommand() *cobra.Command {
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "rm HOST",
		Short: "Take a host out of the cluster for good, once nothing that counts is on it",
		Long: `Retire all devices of a host, which cannot be undone. Refused while a stripe has a
chunk on one of them: drain the host before ("moraine drain HOST --wait"), which
waits for its rebuild too where it is dead. Where that does not come to an end, as
too little is left of some stripes or there is nowhere to rebuild them,
--accept-loss gives up what is left on its devices that are out; one that is in or
draining must be set out before ("moraine device set ID out"). Then end its chunkserver.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			return setHostState(cmd.Context(), c.Client, &wire.SetHostState{Host: args[0], State: wire.DeviceState_DEVICE_STATE_RETIRED,
				Reason: "its host was removed", AcceptLoss: acceptLoss})
		},
	}
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "give up, for good, what stripes still have on its devices that are out")
	return cmd
}

func setHostState(ctx context.Context, c *client.Client, set *wire.SetHostState) error {
	_, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: set}})
	return err
}

// cluster asks the metadata service once for what it knows of the cluster.
func (a *app) cluster(ctx context.Context) (*wire.ClusterReply, error) {
	c, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return getCluster(ctx, c.Client)
}

func getCluster(ctx context.Context, c *client.Client) (*wire.ClusterReply, error) {
	return getClusterAs(ctx, c, &wire.GetCluster{})
}

func getClusterAs(ctx context.Context, c *client.Client, asked *wire.GetCluster) (*wire.ClusterReply, error) {
	resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: asked}})
	return resp.GetCluster(), err
}

// reasonDrained is the reason of the devices of a host that `drain` drains, by which
// --undo knows them.
const reasonDrained = "its host is drained"

func (a *app) drainCommand() *cobra.Command {
	var undo, wait bool
	cmd := &cobra.Command{
		Use:     "drain HOST",
		GroupID: groupCluster,
		Short:   "Move everything off a host, so that it can be removed",
		Long: `Have all that a host holds moved to others, while it goes on to serve; nothing
new is put on it. It stays so, also when its chunkserver starts anew, until
--undo. Where it is dead, or dies meanwhile, what it held is rebuilt from the
others after the grace of repairs, and it is drained on if it comes back. When it
is empty, take it out by "moraine host rm HOST".

--undo leaves those of its devices as they are that are out or draining for another
reason, and names them: "moraine device set ID in" takes one in.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if undo {
				return a.undoDrain(cmd.Context(), c.Client, args[0])
			}
			set := &wire.SetHostState{Host: args[0], State: wire.DeviceState_DEVICE_STATE_DRAINING, Reason: reasonDrained}
			if err := setHostState(cmd.Context(), c.Client, set); err != nil || !wait {
				return err
			}
			return a.waitDrained(cmd.Context(), c.Client, args[0])
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "take the host in again, with what it still has: the drain is over")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when the host holds nothing that counts, and show how far it is")
	return cmd
}

// undoDrain ends the drain of a host, and names the devices that stay out or draining for
// another reason. (What is told of a device may be a moment old, but not its other reasons.)
func (a *app) undoDrain(ctx context.Context, c *client.Client, host string) error {
	err := setHostState(ctx, c, &wire.SetHostState{Host: host, State: wire.DeviceState_DEVICE_STATE_IN,
		Reason: "its host is drained no more", Undoes: reasonDrained})
	if err != nil {
		return err
	}
	cluster, err := getCluster(ctx, c)
	if err != nil {
		return err
	}
	for _, h := range cluster.GetTopology().GetHosts() {
		for _, d := range h.Devices {
			held := d.State == wire.DeviceState_DEVICE_STATE_OUT || d.State == wire.DeviceState_DEVICE_STATE_DRAINING
			if h.Id == host && held && d.Reason != reasonDrained {
				a.note("device %d is still %s: %s", d.Id, deviceState(d.State), d.Reason)
			}
		}
	}
	return nil
}

// waitDrained returns once no stripe has a chunk on a host. Those that were moved
// are on its disks for the grace of deletions still, so that these do not tell.
func (a *app) waitDrained(ctx context.Context, c *client.Client, host string) error {
	last := ""
	for {
		cluster, err := getCluster(ctx, c)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(cluster.GetTopology().GetHosts(), func(h *wire.Host) bool { return h.Id == host })
		if i < 0 {
			return &moraine.Error{Op: "drain", Ref: host, Kind: moraine.NotFound}
		}
		left, held := uint64(0), uint64(0)
		for _, d := range cluster.Topology.Hosts[i].Devices {
			if d.State == wire.DeviceState_DEVICE_STATE_IN { // nobody counts what is on it
				return &moraine.Error{Op: "drain", Ref: host, Kind: moraine.Conflict,
					Err: fmt.Errorf("device %d is in service again (%s): the drain was undone", d.Id, cmp.Or(d.Reason, "no reason given"))}
			}
			left, held = left+d.Claimed, held+d.Chunks
		}
		if left == 0 {
			a.note("%s is empty: `moraine host rm %s` takes it out", host, host)
			return nil
		}
		// The exact count has a bound; above it what is on the disks is near enough.
		line := fmt.Sprintf("%s: about %d chunks left to move%s", host, leftOf(left, held), etaOf(cluster.GetHealing()))
		for _, why := range describeWaits(cluster.Waits).stuck() {
			line += "; " + why
		}
		if line != last {
			a.note("%s", line)
			last = line
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// leftOf is how many chunks are left, where up to 4,096 of them were counted and
// held are on the disks.
func leftOf(counted, held uint64) uint64 {
	if counted < 4096 {
		return counted
	}
	return max(counted, held)
}

// etaOf says in words how long a repair goes on; empty where nobody knows.
func etaOf(h *wire.Healing) string {
	if h.GetEtaMillis() == 0 {
		return ""
	}
	return fmt.Sprintf(", about %v to go", (time.Duration(h.EtaMillis) * time.Millisecond).Round(time.Second))
}

// maintenancePatience is how long an announcement goes on asking: the stripes of a large
// host are judged over several attempts.
const maintenancePatience = 2 * time.Minute

func (a *app) maintenanceCommand() *cobra.Command {
	var length time.Duration
	var reason string
	var force, end bool
	cmd := &cobra.Command{
		Use:     "maintenance HOST --for TIME",
		GroupID: groupCluster,
		Short:   "Announce that a host will be away, for a reboot",
		Long: `Announce that a host will be away. For that long nothing that it holds is rebuilt
for its silence, and nothing new is put on it. It ends by itself when the host's
chunkserver has started anew. Refused where a stripe would be left without a
chunk to spare: hosts that are down, or away already, count, and so do chunks that
are lost or corrupt and wait for repair. Every stripe of the host is looked at; where
that takes longer than the command waits, give it again: it goes on from there.`,
		Example: "  moraine maintenance n3 --for 30m && ssh n3 reboot",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !end && length < time.Second {
				return usageError("for how long? say --for 30m")
			}
			if end {
				length = 0
			}
			c, err := a.dialHosts(cmd.Context(), "", client.Config{Patience: maintenancePatience})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{
				Host: args[0], Millis: uint64(length.Milliseconds()), Reason: reason, Force: force}}})
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&length, "for", 0, "how long it will be away at most (a week at most)")
	f.StringVar(&reason, "reason", "", "why, for people")
	f.BoolVar(&force, "force", false, "even if stripes are left without redundancy meanwhile")
	f.BoolVar(&end, "end", false, "it is back, or was never away")
	return cmd
}
