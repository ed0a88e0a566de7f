package servercmd

import (
	"cmp"
	"context"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// chunkserverOptions are the flags of `moraine chunkserver`.
type chunkserverOptions struct {
	id, rack         string
	listen           []string
	advertise        []string
	adminListen      string
	devices          []string
	capacity, memory cli.SizeFlag
	dirty            cli.SizeFlag
	moverBandwidth   cli.SizeFlag
	scrubBandwidth   cli.SizeFlag
	background       cli.SizeFlag
	scrubParity      string
	memoryNode       int
	bandwidthLimit   cli.SizeFlag
	cpus             float64
	shortCircuit     bool
	service          chunkserver.Config
	mover            mover.Config
	bucket           bucketOptions
	ready            func() // called when the server accepts requests, if set
	// reload reads the devices again when the process gets SIGHUP; nil: the process ignores
	// it.
	reload func() ([]chunkserver.DeviceConfig, error)
}

func newChunkserverCommand(env *cli.Env) *cobra.Command {
	var o chunkserverOptions
	cmd := &cobra.Command{
		Use:     "chunkserver",
		GroupID: cli.GroupServers,
		Short:   "Run a chunkserver: it keeps chunks on this host's disks and runs jobs",
		Long: `Run the server that keeps chunks on this host. Each --device is a directory that
"moraine device format DIR" made a device: best the root of a file system on its own disk.
A new host does not start where a directory contains no device. A host that the cluster
knows skips such a directory: its disk may not be mounted. The server finds the metadata
servers through --endpoint.

On SIGHUP the server reads the devices from the settings file again. It puts new devices
into service. It releases devices that the file no longer names, if they keep no chunk
that counts.`,
		Example: `  moraine device format /mnt/nvme0 /mnt/nvme1 --certs /etc/moraine/certs
  moraine chunkserver --id n1 --listen 0.0.0.0:7410 --advertise n1.example:7410 \
    --device /mnt/nvme0 --device /mnt/nvme1 --endpoint host1,host2,host3 --certs /etc/moraine/certs`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.reload = func() ([]chunkserver.DeviceConfig, error) { return reloadDevices(env, cmd, uint64(o.capacity)) }
			return runChunkserver(cmd.Context(), env, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "node id, as in the certificate")
	f.StringVar(&o.rack, "rack", "", "rack of the host; the leader spreads stripes over racks")
	f.StringSliceVar(&o.listen, "listen", []string{"127.0.0.1:" + cli.DefaultChunkserverPort}, "address to listen on, HOST:PORT or unix:PATH; may be repeated")
	f.StringSliceVar(&o.advertise, "advertise", nil, "address at which clients reach the server "+
		"(default: --listen)")
	f.BoolVar(&o.shortCircuit, "short-circuit", true, "serve programs on this host over a unix socket; "+
		"they find it by themselves beside --listen")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:7411", "address of /metrics, /healthz and /debug/pprof")
	f.StringArrayVar(&o.devices, "device", nil, "directory of a device; may be repeated, in the environment between commas")
	f.Var(&o.capacity, "capacity", "bound of the bytes on each device (default: the size of its file "+
		"system)")
	o.memory, o.moverBandwidth = 1<<30, 512<<20
	f.Var(&o.memory, "memory", "memory for chunks that the server receives, reads or caches; allocated "+
		"at start")
	f.Var(&o.dirty, "dirty-memory", "part of this memory for chunks that are only in memory (default: "+
		"a quarter)")
	f.StringVar(&o.service.MemoryPath, "memory-path", "", "directory of a hugetlbfs or DAX file "+
		"system, or a DAX device, that provides the memory")
	f.IntVar(&o.memoryNode, "memory-node", -1, "NUMA node of the memory (default: any)")
	f.DurationVar(&o.service.HeartbeatInterval, "heartbeat", time.Second, "how often the host sends a "+
		"heartbeat to the metadata service")
	f.DurationVar(&o.service.ReportInterval, "report-interval", time.Hour, "longest pause between two "+
		"full reports of a device; with few chunks it is shorter")
	o.scrubBandwidth = 32 << 20
	o.background = chunkserver.DefaultBackground
	f.Var(&o.background, "background-bandwidth", "bytes a second that repairs and moves of other hosts "+
		"read from this one; an eighth of it while clients are active")
	f.Var(&o.bandwidthLimit, "bandwidth-limit", "bytes a second of chunks and objects that the server "+
		"receives and sends in all, 1MiB or more (default: no limit)")
	f.Float64Var(&o.cpus, "cpus", 0, "processors that the process may use, such as 1.5, 0.05 or more; 0: all")
	f.DurationVar(&o.service.ScrubInterval, "scrub-interval", 7*24*time.Hour, "how often a scrub reads "+
		"and verifies all chunks of a device; negative: only on `moraine scrub start`")
	f.Var(&o.scrubBandwidth, "scrub-bandwidth", "bytes a second that the scrub of a device reads")
	f.StringVar(&o.scrubParity, "scrub-parity", "1%", "share of stripes whose parity a scrub compares "+
		"with their data, such as 0.5%; 0%: none")
	f.IntVar(&o.service.CorruptLimit, "corrupt-limit", 16, "corrupt chunks within a day after which "+
		"the server sets a device out; negative: never")
	f.IntVar(&o.mover.Jobs, "repair-jobs", 2, "repair jobs that run at the same time")
	o.bucket.addFlags(f)
	f.IntVar(&o.mover.Moves, "move-jobs", 4, "flushes, stages and evictions that run at the same time")
	f.Var(&o.moverBandwidth, "repair-bandwidth", "bytes a second that repairs may rebuild")
	return cmd
}

func runChunkserver(ctx context.Context, env *cli.Env, o chunkserverOptions) error {
	sec, err := env.Security()
	if err != nil {
		return err
	}
	if sec.Identity != nil {
		claims := sec.Identity.Claims()
		o.service.Cluster = claims.Cluster
		o.id = cmp.Or(o.id, claims.Node)
	}
	if o.id == "" || len(o.devices) == 0 {
		return cli.UsageError("a chunkserver needs --id and at least one --device")
	}
	if err := sec.Require(transport.RoleChunkserver, o.id); err != nil {
		return err
	}
	if len(address.SplitEndpoint(env.Global.Endpoint)) == 0 {
		return cli.UsageError("no cluster is named: name its metadata servers with --endpoint")
	}
	if len(o.advertise) == 0 {
		o.advertise = o.listen
	}
	for _, addr := range o.advertise {
		if strings.HasPrefix(addr, "0.0.0.0:") || strings.HasPrefix(addr, "[::]:") {
			return cli.UsageError("clients cannot reach %s: give an address that they can reach with "+
				"--advertise", addr)
		}
	}
	s := &o.service
	s.Node, s.Rack, s.Addresses, s.AdminAddress, s.Release = o.id, o.rack, o.advertise, o.adminListen, cli.Version
	s.DirtyBytes = int64(o.dirty)
	s.MemoryBytes, s.MemoryNode, s.Prefault = int64(o.memory), o.memoryNode+1, true
	s.ScrubBytesPerSecond = int64(o.scrubBandwidth)
	if o.scrubParity != "" {
		if s.ScrubParity, err = parseShare("--scrub-parity", o.scrubParity); err != nil {
			return err
		}
	}
	o.mover.BytesPerSecond = int64(o.moverBandwidth)
	if o.cpus < 0 {
		return cli.UsageError("--cpus %v: write a number of processors, such as 1.5", o.cpus)
	}
	for _, dir := range o.devices {
		if err := serve.CheckDir("--device", dir); err != nil {
			return err
		}
		s.Devices = append(s.Devices, chunkserver.DeviceConfig{Dir: dir, CapacityBytes: uint64(o.capacity)})
	}
	return serveChunks(ctx, env, sec, o)
}

// parseShare reads a share like 1%, and returns it in parts of 10,000; none is -1.
func parseShare(flag, text string) (int, error) {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	switch {
	case err != nil || !strings.HasSuffix(text, "%") || !(percent >= 0 && percent <= 100):
		return 0, cli.UsageError("%s %q: write a share from 0%% to 100%%, such as 1%%", flag, text)
	case percent == 0:
		return -1, nil
	}
	return max(1, int(math.Round(percent*100))), nil
}

func serveChunks(ctx context.Context, env *cli.Env, sec cli.Security, o chunkserverOptions) error {
	log, err := env.Log()
	if err != nil {
		return err
	}
	log = log.With("node", o.id)
	var signals chan os.Signal
	if o.reload != nil {
		var stop func()
		signals, stop = hangups()
		defer stop()
	}
	reg := serve.NewRegistry()
	network := transport.NewMetrics(reg)
	meta := &lateClient{}
	bucket, err := o.bucket.open(ctx, log, reg)
	if err != nil {
		return err
	}
	deps := chunkserver.Deps{Meta: meta, Log: log, Metrics: chunkserver.NewMetrics(reg), DiskMetrics: disk.NewMetrics(reg)}
	moves := mover.Deps{Log: log}
	if bucket != nil { // a nil *object.Bucket in an interface is not nil
		deps.Bucket, moves.Bucket = bucket, bucket
		o.service.Bucket, o.service.PieceBytes = bucket.URL(), int64(o.bucket.pieces)
	}
	deps.CheckParity = func(ctx context.Context, w *wire.Stripe) (uint32, error) {
		return rawclient.Of(meta.c).CheckParity(client.WithLowPriority(ctx), w)
	}
	var bounded *chunkserver.Neighbour
	take := func(ctx context.Context, bytes int64) error { return bounded.Take(ctx, bytes) }
	deps.Pace, moves.Pace = take, take
	moves.PaceRepair = func(ctx context.Context, bytes int64) error { return bounded.TakeForRepair(ctx, bytes) }
	var probe func(ctx context.Context, role transport.Role, node, addr string) error // of the pool, which is built later
	deps.Probe = func(ctx context.Context, role transport.Role, node, addr string) error {
		return probe(ctx, role, node, addr)
	}
	service, err := chunkserver.New(o.service, deps)
	if err != nil {
		return err
	}
	if o.cpus > 0 {
		// Work that has begun always finishes. With fewer processors the server begins less
		// work at the same time.
		o.mover.Stripes = max(1, min(4, int(4*o.cpus)))
		o.mover.UploadBytes = int64(max(1, min(8, int(8*o.cpus)))) << 24
		runtime.GOMAXPROCS(max(min(runtime.NumCPU(), int(math.Ceil(o.cpus))), 1))
	}
	bounded, err = chunkserver.NewNeighbour(service, chunkserver.Limits{BytesPerSecond: int64(o.bandwidthLimit), CPUs: o.cpus, BackgroundBytesPerSecond: int64(o.background)},
		chunkserver.NeighbourDeps{Metrics: deps.Metrics, Log: deps.Log})
	if err != nil {
		return err
	}
	server, err := transport.NewServer(
		transport.ServerConfig{Addresses: o.listen, Mode: sec.Mode, Cluster: o.service.Cluster, Role: transport.RoleChunkserver, Node: o.id, Release: cli.Version, ShortCircuit: o.shortCircuit},
		transport.ServerDeps{Handler: transport.HandlerForChunks(bounded), Identity: sec.Identity, Keys: service.Key, Incarnation: service.Incarnation, Revoked: service.Revoked,
			Log: log, Metrics: network})
	if err != nil {
		return err
	}
	adm, err := serve.ListenAdmin(o.adminListen, reg, service.Healthy)
	if err != nil {
		return err
	}
	pool, err := sec.Pool(transport.RoleChunkserver, o.id, transport.PoolDeps{Log: log, Metrics: network})
	if err != nil {
		return err
	}
	defer pool.Close()
	probe = pool.Probe
	return serve.RunAll(ctx, adm.Run, server.Run, serve.WatchCertificate(sec, log), serve.WhenReady(server, func(ctx context.Context) error {
		c, err := serve.DialPatiently(ctx, client.Config{Metadata: address.SplitEndpoint(env.Global.Endpoint), MemoryBytes: moverMemory, CacheEntries: -1,
			StripesInFlight: o.mover.Stripes},
			client.Deps{Dialer: pool, Log: log, Metrics: client.NewMetrics(reg)})
		if err != nil {
			return serve.IgnoreEnd(ctx, err)
		}
		defer c.Close()
		meta.c = c
		follow := func(ctx context.Context) error { <-ctx.Done(); return nil }
		if o.reload != nil {
			follow = func(ctx context.Context) error { return followDevices(ctx, signals, service, o.reload, log) }
		}
		return serve.RunAll(ctx, service.Run, follow, moverOf(c, o.mover, moves, reg, service.Ready()), func(ctx context.Context) error {
			select {
			case <-service.Ready():
				log.Info("serving", "listen", o.listen, "admin", o.adminListen, "mode", sec.Mode, "devices", o.devices)
				if o.ready != nil {
					o.ready()
				}
			case <-ctx.Done():
			}
			return nil
		})
	}))
}

// moverMemory bounds the memory of the mover's client.
const moverMemory = 128 << 20

// lateClient is a metadata service that the server reaches through a client session. The
// server opens the session when it runs.
type lateClient struct{ c *client.Client }

// Do implements transport.Metadata: it follows the leader, and repeats a request under one
// number.
func (l *lateClient) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return rawclient.Of(l.c).Meta(ctx, req)
}

// moverOf runs a mover after its chunkserver has registered.
func moverOf(c *client.Client, cfg mover.Config, deps mover.Deps, reg prometheus.Registerer, ready <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		deps.Client, deps.Metrics = c, mover.NewMetrics(reg)
		m, err := mover.New(cfg, deps)
		if err != nil {
			return err
		}
		select {
		case <-ready:
			return serve.IgnoreEnd(ctx, m.Run(ctx))
		case <-ctx.Done():
			return nil
		}
	}
}
