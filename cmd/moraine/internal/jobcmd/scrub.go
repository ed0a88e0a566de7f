package jobcmd

import (
	"fmt"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/spf13/cobra"
)

// scrubRow is a device as `scrub status` prints it.
type scrubRow struct {
	Device   uint32 `json:"device"`
	Host     string `json:"host"`
	Running  bool   `json:"running"`
	Chunks   uint64 `json:"chunks"`      // that the current pass has read
	Bytes    uint64 `json:"bytes"`       // that the current pass has read
	Bad      uint64 `json:"bad"`         // chunks that the current pass found bad, and queued for repair
	Used     uint64 `json:"used_bytes"`  // that a whole pass reads
	ETA      uint64 `json:"eta_seconds"` // of the current pass, at its bandwidth limit
	LastDone string `json:"last_done,omitempty"`
	LastBad  uint64 `json:"last_bad"`
	Corrupt  uint64 `json:"corrupt_chunks"` // found by reads and scrubs since the server started
}

func newScrubCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "scrub",
		GroupID: cli.GroupCluster,
		Short:   "Show and start scrubs, which read all chunks of devices to find bad ones",
		Long: `Chunkservers read all chunks of their devices, once each --scrub-interval and at
--scrub-bandwidth. They compare them with their checksums and the stripe records. The cluster
rebuilds a bad chunk from the rest of its stripe.`,
	}, newScrubStatusCommand(env), newScrubStartCommand(env))
}

func newScrubStatusCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the progress of each device, its last full pass, and its bad chunks",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := view.CurrentCluster(cmd.Context(), env)
			if err != nil {
				return err
			}
			var rows []scrubRow
			for _, h := range cluster.GetTopology().GetHosts() {
				for _, d := range h.Devices {
					if d.State != wire.DeviceState_DEVICE_STATE_RETIRED {
						rows = append(rows, describeScrub(h.Id, d))
					}
				}
			}
			return cli.List(env, rows, table.Row{"device", "host", "pass", "bad", "last whole pass", "bad then", "corrupt since start"}, func(r scrubRow) table.Row {
				pass := "waits"
				if r.Running {
					pass = fmt.Sprintf("%s of %s, %v to go", cli.Size(r.Bytes), cli.Size(r.Used), time.Duration(r.ETA)*time.Second)
				}
				last := "never"
				if r.LastDone != "" {
					last = r.LastDone
				}
				return table.Row{r.Device, r.Host, pass, r.Bad, last, r.LastBad, r.Corrupt}
			})
		},
	}
}

func describeScrub(host string, d *wire.Device) scrubRow {
	s := d.GetScrub()
	r := scrubRow{Device: d.Id, Host: host, Running: s.GetRunning(), Chunks: s.GetChunks(), Bytes: s.GetBytes(), Bad: s.GetBad(),
		Used: d.Used, LastBad: s.GetLastBad(), Corrupt: d.CorruptChunks}
	if s.GetRunning() && s.GetBytesPerSecond() > 0 && d.Used > s.GetBytes() {
		r.ETA = (d.Used - s.GetBytes()) / s.GetBytesPerSecond()
	}
	if s.GetLastDone() != 0 {
		r.LastDone = time.Unix(s.GetLastDone(), 0).UTC().Format(time.RFC3339)
	}
	return r
}

func newScrubStartCommand(env *cli.Env) *cobra.Command {
	var host string
	cmd := &cobra.Command{
		Use: "start [DEVICE...]",
		Short: "Start a scrub now, ahead of the schedule: of some devices, of those of a host, or of " +
			"all",
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &wire.StartScrub{Host: host}
			for _, arg := range args {
				id, err := strconv.ParseUint(arg, 10, 32)
				if err != nil || id == 0 {
					return cli.UsageError("device %q: write an id as `moraine device ls` prints it", arg)
				}
				req.Devices = append(req.Devices, uint32(id))
			}
			c, err := env.Dial(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = rawclient.Of(c).Meta(cmd.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_StartScrub{StartScrub: req}})
			return err
		},
	}
	cmd.Flags().StringVar(&host, "host", "", "scrub the devices of the named host")
	return cmd
}
