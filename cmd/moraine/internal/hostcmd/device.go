package hostcmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// deviceRow is what `device ls` prints of a device.
type deviceRow struct {
	ID       uint32 `json:"id"`
	Host     string `json:"host"`
	UUID     string `json:"uuid"`
	State    string `json:"state"`
	Status   string `json:"status"` // of its host: up, down or unknown
	Alive    bool   `json:"alive"`  // the leader knows that its host is up
	Reason   string `json:"reason,omitempty"`
	Capacity uint64 `json:"capacity_bytes"`
	Used     uint64 `json:"used_bytes"`
	Chunks   uint64 `json:"chunks"`
	// Measured: the server has reported how full the device is; else used is an estimate.
	// Reported: the server has reported all chunks of the device since it booted.
	Measured bool `json:"usage_known"`
	Reported bool `json:"report_complete"`
	// What the disk reports; Health is empty where it reports nothing.
	Health      string `json:"health,omitempty"`
	Model       string `json:"model,omitempty"`
	Worn        uint32 `json:"worn_percent,omitempty"`
	Celsius     int32  `json:"celsius,omitempty"`
	MediaErrors uint64 `json:"media_errors,omitempty"`
	// PutMicros is the median time of its recent puts.
	PutMicros uint64 `json:"put_micros,omitempty"`
	// ReadMicros are the times of recent reads of its medium: of up to 96 KiB, 768 KiB, 6
	// MiB, and more.
	ReadMicros []uint64 `json:"read_micros,omitempty"`
	Corrupt    uint64   `json:"corrupt_chunks,omitempty"`
}

// healthOf returns the health that a disk reports, in words.
func healthOf(h *wire.DiskHealth) string {
	switch {
	case h == nil:
		return ""
	case h.Failing:
		return "FAILING: " + h.Text
	case h.Text != "":
		return h.Text
	}
	text := fmt.Sprintf("ok, %d%% worn", h.WornPercent)
	if h.Celsius != 0 {
		text += fmt.Sprintf(", %d C", h.Celsius)
	}
	return text
}

// deviceStates are the states as people write them on command lines.
var deviceStates = map[string]wire.DeviceState{
	"in": wire.DeviceState_DEVICE_STATE_IN, "out": wire.DeviceState_DEVICE_STATE_OUT,
	"draining": wire.DeviceState_DEVICE_STATE_DRAINING, "retired": wire.DeviceState_DEVICE_STATE_RETIRED,
}

func deviceState(s wire.DeviceState) string {
	for name, v := range deviceStates {
		if v == s {
			return name
		}
	}
	return "unknown"
}

func newDeviceCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "device",
		GroupID: cli.GroupCluster,
		Short:   "List devices, make new ones, and change their states",
	}, newDeviceListCommand(env), newDeviceSetCommand(env), newDeviceFormatCommand(env))
}

func newDeviceFormatCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "format DIR...",
		Short: "Make devices of empty directories of this host",
		Long: `Make a device of each empty directory, for the cluster of the certificate in --certs
(with --insecure, for the cluster that --endpoint names). Then name it in the settings
file of the chunkserver and send the chunkserver SIGHUP. Or name it with --device and
start the chunkserver.

A chunkserver formats nothing by itself: a directory without a device may be mistyped, or
its disk may not be mounted. For the same reason this command refuses a directory that
does not exist, one that is a device already, and one that is not empty.`,
		Example: "  moraine device format /mnt/nvme1 --certs /etc/moraine/certs",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			cluster, err := ownCluster(cmd.Context(), env)
			if err != nil {
				return err
			}
			for _, dir := range dirs {
				if err := checkFormatDir(dir); err != nil {
					return err
				}
				id, err := disk.Format(vfs.OS{}, dir, cluster, rand.Reader)
				if errors.Is(err, moraine.Exists) {
					return fmt.Errorf("%s is a device already: the command did not change it", dir)
				}
				if err != nil {
					return err
				}
				env.Note("%s is device %s of cluster %s: name it in the settings file and send the "+
					"chunkserver SIGHUP, or name it with --device and start the chunkserver", dir, id.Device, cluster)
			}
			return nil
		},
	}
}

// checkFormatDir refuses a missing directory: its name may be mistyped, and a device there
// would fill the disk of its parent.
func checkFormatDir(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cli.UsageError("%s: there is no such directory: correct the name, or mount the disk and "+
			"make the directory first", dir)
	case err != nil:
		return err
	case !st.IsDir():
		return cli.UsageError("%s: this is a file: name an empty directory", dir)
	}
	return nil
}

// ownCluster returns the cluster of this program's certificate; without certificates, that
// of the metadata servers.
func ownCluster(ctx context.Context, env *cli.Env) (moraine.UUID, error) {
	sec, err := env.Security()
	if err != nil {
		return moraine.UUID{}, err
	}
	if sec.Identity != nil {
		return sec.Identity.Claims().Cluster, nil
	}
	return env.ClusterAt(ctx, "")
}

func newDeviceListCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List all devices",
		Args:  cobra.NoArgs,
		RunE: env.OnCluster(func(ctx context.Context, c *cli.Connection, _ []string) error {
			resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}})
			if err != nil {
				return err
			}
			var rows []deviceRow
			for _, h := range resp.GetTopology().GetHosts() {
				for _, d := range h.Devices {
					row := deviceRow{ID: d.Id, Host: h.Id, State: deviceState(d.State), Status: view.ServerStatus(h.Alive, h.Seen), Alive: h.Alive && h.Seen, Reason: d.Reason,
						Measured: d.Measured, Reported: d.Reported,
						Capacity: d.Capacity, Used: d.Used, Chunks: d.Chunks, Health: healthOf(d.Health), Model: d.Health.GetModel(),
						Worn: d.Health.GetWornPercent(), Celsius: d.Health.GetCelsius(), MediaErrors: d.Health.GetMediaErrors(),
						PutMicros: d.PutMicros, ReadMicros: d.ReadMicros, Corrupt: d.CorruptChunks}
					if len(d.Uuid) == len(moraine.UUID{}) {
						row.UUID = moraine.UUID(d.Uuid).String()
					}
					rows = append(rows, row)
				}
			}
			return cli.List(env, rows, table.Row{"id", "host", "state", "", "used", "capacity", "chunks", "disk", "reason"}, func(r deviceRow) table.Row {
				return table.Row{r.ID, r.Host, r.State, view.Shout(r.Status), view.Known(r.Measured, cli.Size(r.Used)), cli.Size(r.Capacity), view.Known(r.Measured, r.Chunks), r.Health, r.Reason}
			})
		}),
	}
}

func newDeviceSetCommand(env *cli.Env) *cobra.Command {
	var reason string
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "set ID in|out|draining|retired",
		Short: "Change the state of a device",
		Long: `Change the state of a device:

  in        it takes and serves chunks
  out       the cluster does not use it, and rebuilds its chunks elsewhere; chunks
            that it still has count again when it is set in
  draining  it serves chunks and takes no new ones; movers move its chunks elsewhere
  retired   it is gone for good, and never returns under this identity; refused
            while a stripe has a chunk on it

A device stays out or draining until somebody sets it in, also after its host restarts.

The rebuild of a device that is out is complete when "moraine cluster status" shows no stripe
that waits for repair or is lost. It never completes where the disk cannot be read and too
few chunks are left elsewhere, or where no device has room. Then "retired --accept-loss"
abandons the chunks that stripes still have on it.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil || id == 0 {
				return cli.UsageError("device %q: write an id as `moraine device ls` prints it", args[0])
			}
			state, ok := deviceStates[args[1]]
			if !ok {
				names := make([]string, 0, len(deviceStates))
				for name := range deviceStates {
					names = append(names, name)
				}
				slices.Sort(names)
				return cli.UsageError("state %q: write one of %s", args[1], strings.Join(names, ", "))
			}
			if acceptLoss && state != wire.DeviceState_DEVICE_STATE_RETIRED {
				return cli.UsageError("--accept-loss works only with retired")
			}
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if reason == "" {
				reason = fmt.Sprintf("set %s by hand", args[1])
			}
			_, err = rawclient.Of(c).Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{
				SetDeviceState: &wire.SetDeviceState{Device: uint32(id), State: state, Reason: reason, AcceptLoss: acceptLoss}}})
			return err
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, shown to people")
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "with retired, of a device that is out: "+
		"abandon, for good, the chunks that stripes still have on it")
	return cmd
}
