// Package simcmd has the commands of the simulator: sim durability and sim throughput.
//
// One path through it: `moraine sim throughput --from lines` -> takeMeasured reads the
// figures of a benchmark -> package sim computes -> printThroughput shows which part limits.
package simcmd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/bench"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/sim"
	"github.com/spf13/cobra"
)

// NewSimCommand returns `moraine sim`.
func NewSimCommand(env *cli.Env) *cobra.Command {
	return cli.Parent(&cobra.Command{
		Use:     "sim",
		GroupID: cli.GroupCluster,
		Short:   "Compute what a planned cluster would do",
	}, newSimDurabilityCommand(env), newSimThroughputCommand(env))
}

// durability is what `sim durability` prints for a scheme.
type durability struct {
	Scheme string `json:"scheme"`
	Seed   uint64 `json:"seed"`
	sim.Result
}

// MeasuredRebuild is how many bytes each of six hosts rebuilt in a second in `bench rebuild`.
// The scheme was 4+2, with the foreground load, all on one disk and two processors. docs/BENCHMARKS.md has
// the figure, and TestSimDurabilityTakesTheMeasuredRebuild reads it there.
const MeasuredRebuild = 13 << 20

func newSimDurabilityCommand(env *cli.Env) *cobra.Command {
	f := sim.Fleet{Domain: sim.DomainHost}
	var schemes []string
	var domain string
	var stored, rebuild, chunk = cli.SizeFlag(4 << 40), cli.SizeFlag(MeasuredRebuild), cli.SizeFlag(moraine.DefaultChunkSize)
	var episodes int
	var seed uint64
	cmd := &cobra.Command{
		Use:   "durability",
		Short: "Compute how likely the loss of a stripe in a year is, by scheme",
		Long: `Compute by Monte Carlo how likely a fleet is to lose data. "any stripe" is the probability
that one stripe or more is lost in a year, "one stripe" that of a given one.

The model:

  - Losses of devices and hosts are random, at the given rates.
  - All devices have the same number of bytes, and stripes are spread over all devices. So all hosts rebuild
    what was lost, and first the stripes with the least redundancy left.
  - The data of a lost host waits for the grace period, in case the host returns. A device
    that fails is out at once.
  - Rebuilt chunks are on other devices, and an empty device replaces the lost one.

Losses of stripes are too rare to occur by chance. So the command draws further losses more
often than they occur, and weights them accordingly. The interval is of 95%. The same seed
gives the same figures. The model leaves out silent corruption, errors of software or people,
and losses that come together (power, a bad batch of devices).`,
		Example: `  moraine sim durability --hosts 400 --devices 8 --stored 8TiB --device-afr 0.01
  moraine sim durability --scheme 4+2,x3 --rebuild-rate 500MiB --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Domain, f.DeviceBytes, f.RebuildRate, f.ChunkBytes = sim.Domain(domain), float64(stored), float64(rebuild), float64(chunk)
			if !cmd.Flags().Changed("seed") {
				seed = uint64(time.Now().UnixNano())
			}
			var found []durability
			for _, s := range schemes {
				scheme, err := moraine.ParseScheme(s)
				if err != nil {
					return cli.UsageError("--scheme: %v", err)
				}
				f.Scheme = scheme
				r, err := sim.Durability(f, episodes, seed)
				if errors.Is(err, moraine.InvalidArgument) {
					return cli.UsageError("%v", err)
				}
				if err != nil {
					return err
				}
				found = append(found, durability{s, seed, r})
			}
			if !env.Global.JSON {
				env.Note("%d hosts of %d devices, %s on each; %g of devices and %g of hosts lost in a "+
					"year;", f.Hosts, f.Devices, cli.Size(uint64(stored)), f.DeviceAFR, f.HostAFR)
				how := "as given"
				if rebuild == MeasuredRebuild {
					how = "measured by bench rebuild, docs/BENCHMARKS.md"
				}
				env.Note("each host rebuilds %s/s (%s), all together %g stripes/s, %s after a loss; chunks of %s, of a stripe no two in one %s; seed %d\n", cli.Size(uint64(rebuild)), how, f.StripesPerSecond, f.Detect+f.Grace, cli.Size(uint64(chunk)), f.Domain, seed)
			}
			return cli.List(env, found, table.Row{"scheme", "any stripe, a year", "95% interval", "one stripe, a year", "95% interval", "nines", "a device, rebuilt in"}, func(d durability) table.Row {
				return table.Row{d.Scheme, likelihood(d.AnyStripe.Value), likelihood(d.AnyStripe.Low) + " to " + likelihood(d.AnyStripe.High),
					likelihood(d.OneStripe.Value), likelihood(d.OneStripe.Low) + " to " + likelihood(d.OneStripe.High), nines(d.OneStripe.Value), (time.Duration(d.RebuildDevice) * time.Second).String()}
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&schemes, "scheme", []string{"4+2", "8+3", "x3"}, "schemes to compare")
	fl.IntVar(&f.Hosts, "hosts", 100, "hosts that store")
	fl.IntVar(&f.Devices, "devices", 8, "devices of each host")
	fl.Var(&stored, "stored", "bytes stored on each device, parity included")
	fl.Float64Var(&f.DeviceAFR, "device-afr", 0.015, "share of the devices that are lost in a year")
	fl.Float64Var(&f.HostAFR, "host-afr", 0.005, "share of the hosts that are lost with all their "+
		"devices in a year")
	fl.Var(&rebuild, "rebuild-rate", "bytes that each host rebuilds in a second (\"moraine bench "+
		"rebuild\" measures it beside clients)")
	fl.Float64Var(&f.StripesPerSecond, "repairs-per-second", 256, "stripes a second that the metadata "+
		"leader gives to repair jobs, as the servers' flag of that name; 0: no bound")
	fl.DurationVar(&f.Detect, "detect", 3*time.Second, "how long it takes until the cluster notices a "+
		"loss")
	fl.DurationVar(&f.Grace, "grace", metadata.DefaultRepairGrace, "how long a lost host may be away "+
		"before the rebuild starts, as --repair-grace of the servers")
	fl.StringVar(&domain, "domain", string(sim.DomainHost), "what the chunks of a stripe never share: "+
		"device, host or rack")
	fl.IntVar(&f.Racks, "racks", 10, "racks with the same number of hosts each, where the domain is "+
		"rack")
	fl.Var(&chunk, "chunk", "length of a chunk: shorter chunks mean more stripes that can be lost")
	fl.IntVar(&episodes, "episodes", 200_000, "how many histories of losses are drawn")
	fl.Uint64Var(&seed, "seed", 0, "seed of the draws (default: a new one)")
	return cmd
}

func likelihood(p float64) string {
	if p == 0 {
		return "0"
	}
	return fmt.Sprintf("%.2g", p)
}

// nines counts those of 1-p.
func nines(p float64) string {
	if p <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", -math.Log10(p))
}

func newSimThroughputCommand(env *cli.Env) *cobra.Command {
	var p sim.Parts
	var scheme, from string
	var nic, clientNIC float64
	var write, read cli.SizeFlag
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Compute the bandwidth of a cluster with given parts, and what limits it",
		Long: `Compute the total bandwidth and operations of a cluster from the speed of its parts and the
measured costs. --from reads the costs, and the speed of a device, from the lines of "moraine
bench write read meta --json" on such a host. Without it the costs are those of
docs/BENCHMARKS.md.

Assumptions:

  - Each part is fully busy, and work is spread evenly.
  - A device is as fast with others beside it.
  - CPU costs are those of the measured machine, and grow only with the bytes.
  - The metadata service is one leader, whatever the number of hosts.`,
		Example: `  moraine bench write --json >lines; moraine bench meta --json >>lines
  moraine sim throughput --from lines --hosts 100 --devices 8 --nic 400 --clients 1000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if p.Scheme, err = moraine.ParseScheme(scheme); err != nil {
				return cli.UsageError("--scheme: %v", err)
			}
			p.NIC, p.ClientNIC = nic*1e9/8, clientNIC*1e9/8
			p.DeviceWrite, p.DeviceRead = float64(write), float64(read)
			if from != "" {
				if err := takeMeasured(&p, from, cmd.Flags().Changed); err != nil {
					return err
				}
			}
			t, err := sim.Compute(p)
			if err != nil {
				return cli.UsageError("%v", err)
			}
			return printThroughput(env, p, t)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&from, "from", "", "lines of `moraine bench ... --json`, a file or - for standard "+
		"input")
	fl.StringVar(&scheme, "scheme", "4+2", "scheme of the files")
	fl.IntVar(&p.Hosts, "hosts", 100, "hosts that store")
	fl.IntVar(&p.Devices, "devices", 8, "devices of each host")
	write, read = 2<<30, 5<<30
	fl.Var(&write, "device-write", "bytes a second that a device writes")
	fl.Var(&read, "device-read", "bytes a second that a device reads")
	fl.Float64Var(&nic, "nic", 100, "network of each host, Gbit/s")
	fl.Float64Var(&p.Cores, "cores", 8, "cores of each host for storage")
	fl.IntVar(&p.Clients, "clients", 100, "nodes that write or read")
	fl.Float64Var(&clientNIC, "client-nic", 100, "network of each client, Gbit/s")
	fl.Float64Var(&p.ClientCores, "client-cores", 4, "cores of each client for storage traffic")
	fl.Float64Var(&p.WriteCPU, "write-cpu", 1.74, "CPU seconds for a GB written, client and servers together")
	fl.Float64Var(&p.ReadCPU, "read-cpu", 1.09, "CPU seconds for a GB read")
	fl.Float64Var(&p.ClientShare, "client-share", 0.42, "share of these CPU seconds that clients use")
	fl.Float64Var(&p.Creates, "creates", 9_900, "creates a second of the metadata service")
	fl.Float64Var(&p.Stats, "stats", 54_900, "stats a second of the metadata service")
	fl.Float64Var(&p.WriteCommands, "write-commands", 4.7, "metadata commands for a GB written")
	return cmd
}

// takeMeasured uses the measured values of a benchmark, except where a flag gives one.
func takeMeasured(p *sim.Parts, from string, given func(flag string) bool) error {
	in := io.Reader(os.Stdin)
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	found := 0
	take := func(flag string, to *float64, v float64) {
		if found++; !given(flag) && v > 0 {
			*to = v
		}
	}
	dec := json.NewDecoder(bufio.NewReader(in))
	for n := 1; dec.More(); n++ {
		var l bench.Line
		if err := dec.Decode(&l); err != nil {
			return cli.UsageError("--from %s: line %d is not from `moraine bench --json`: %v", from, n, err)
		}
		switch l.Name {
		case "write":
			take("write-cpu", &p.WriteCPU, l.CPU)
			take("device-write", &p.DeviceWrite, l.Limit*1.5*1e9) // the limit is the disk's / 1.5
		case "read":
			take("read-cpu", &p.ReadCPU, l.CPU)
			take("device-read", &p.DeviceRead, l.Limit*1e9)
		case "create":
			take("creates", &p.Creates, l.Value)
		case "stat":
			take("stats", &p.Stats, l.Value)
		case "write-metadata-commands":
			take("write-commands", &p.WriteCommands, l.Value)
		}
	}
	if found == 0 {
		return cli.UsageError("--from %s: the file has no line of write, read, create or stat", from)
	}
	return nil
}

func printThroughput(env *cli.Env, p sim.Parts, t sim.Throughput) error {
	if env.Global.JSON {
		return cli.PrintJSON(env.Out, struct {
			sim.Throughput
			Parts sim.Parts `json:"parts"`
		}{t, p})
	}
	env.Note("%d hosts of %d devices, %s; %d clients", p.Hosts, p.Devices, p.Scheme, p.Clients)
	env.Note("CPU seconds a GB: %.2f to write, %.2f to read, %.0f%% of it the client's\n", p.WriteCPU, p.ReadCPU, 100*p.ClientShare)
	var rows []table.Row
	for _, w := range []struct {
		what   string
		limits []sim.Limit
	}{{"write", t.Write}, {"read", t.Read}} {
		for i, l := range w.limits {
			bound := ""
			if i == 0 {
				bound = "binds"
			}
			rows = append(rows, table.Row{w.what, l.Part, humanize.SIWithDigits(l.Value, 1, "B/s"), bound})
		}
	}
	cli.PrintTable(env.Out, table.Row{"", "part", "allows", ""}, rows)
	env.Note("\ncreates %.0f/s, stats %.0f/s: the metadata leader's, whatever the number of hosts", t.Creates, t.Stats)
	env.Note("assumed: parts fully busy, work spread evenly, costs as on the measured machine")
	return nil
}
