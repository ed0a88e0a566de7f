// Package servercmd has the commands that run servers: metadata, chunkserver, object-server,
// and standalone, which runs a whole cluster in one process.
//
// One path through it: `moraine chunkserver` -> runChunkserver checks the flags and the
// certificate -> serveChunks makes the server, the client of its mover and the admin port ->
// serve.RunAll runs them until a signal ends them.
package servercmd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/metadatacmd"
	"github.com/morainefs/moraine/cmd/moraine/internal/serve"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
)

// metadataOptions are the flags of `moraine metadata`.
type metadataOptions struct {
	backups     backupFlags
	id, data    string
	listen      []string
	adminListen string
	peers       []string
	bootstrap   bool
	join        bool
	imitate     string
	service     metadata.Config
	store       raftstore.Config
	cache       cli.SizeFlag
	logKeep     cli.SizeFlag
	rewriteRate cli.SizeFlag
}

// What --imitate may name.
const (
	imitateFuture = "later-release"
	imitateHasty  = "hasty-later-release" // its leader proposes above the cluster's feature level
)

func newMetadataCommand(env *cli.Env) *cobra.Command {
	var o metadataOptions
	cmd := &cobra.Command{
		Use:     "metadata",
		GroupID: cli.GroupServers,
		Short:   "Run a metadata server, or list and change the metadata servers",
		Long: `Run one of the servers that keep the namespace and replicate it by Raft. A cluster has 1,
3 or 5 of them; a majority must be up. The first start of a new cluster needs --bootstrap:
the server then forms the group of --peers. Give every server the same peers. Later starts
find the group in --data.

To add a server to a running cluster, start it with --join. Give it an id that was never
used, and name it and at least one of the other servers in --peers. Then "moraine metadata
add" makes it a member. --peers of the others need not change.

Without --bootstrap or --join the command refuses an empty --data. A server that has lost its
disk has forgotten what it acknowledged, and must not vote under its old id.

The commands below are for people. They use the cluster that --endpoint names.`,
		Example: `  moraine metadata --id m1 --data /var/lib/moraine --listen 0.0.0.0:7400 \
    --peers m1=host1:7400,m2=host2:7400,m3=host3:7400 --certs /etc/moraine/certs --bootstrap`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.service.RewriteLive == 0 || o.service.PackAfter == 0 {
				return cli.UsageError("--rewrite-live and --pack-after cannot be 0: --rewrite-live -1 " +
					"turns rewriting off, and --pack-after -1s turns packing off")
			}
			if o.service.SlowTimes == 0 {
				return cli.UsageError("--slow-times cannot be 0: -1 turns it off")
			}
			if err := o.backups.check(); err != nil {
				return err
			}
			if o.service.CheckEvery == 0 {
				return cli.UsageError("--check-interval cannot be 0: -1s turns checks off")
			}
			return runMetadata(cmd.Context(), env, o)
		},
	}
	cmd.AddCommand(metadatacmd.Commands(env)...)
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "node id, as in the certificate")
	f.StringVar(&o.data, "data", "", "directory for the log and the state")
	f.StringSliceVar(&o.listen, "listen", []string{"127.0.0.1:" + cli.DefaultMetadataPort}, "address to listen on, HOST:PORT or unix:PATH; may be repeated")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:7401", "address of /metrics, /healthz and /debug/pprof")
	f.StringSliceVar(&o.peers, "peers", nil, "all metadata servers, including this one: "+
		"ID=HOST:PORT,...")
	f.BoolVar(&o.bootstrap, "bootstrap", false, "first start of a new cluster: form its group in an "+
		"empty --data")
	f.BoolVar(&o.join, "join", false, "first start of a server that joins a running cluster")
	f.DurationVar(&o.service.SessionTimeout, "session-timeout", time.Minute, "a client's session ends "+
		"this long after its last renewal")
	f.IntVar(&o.service.MaxSessions, "max-sessions", metadata.DefaultMaxSessions, "live sessions that "+
		"one certificate may have")
	f.DurationVar(&o.service.Grace, "grace", time.Minute, "time between the death of a chunk and its "+
		"deletion")
	f.DurationVar(&o.service.Suspect, "suspect-after", 3*time.Second, "silence of a host after which "+
		"nothing new is placed on it")
	f.DurationVar(&o.service.RepairGrace, "repair-grace", metadata.DefaultRepairGrace, "silence of a "+
		"host after which its chunks are rebuilt elsewhere")
	f.DurationVar(&o.service.SettleTime, "bucket-settle", 15*time.Minute, "how long after the end "+
		"of a job lease the bucket may still apply a change whose reply was lost; the same on every server")
	f.IntVar(&o.service.MinProtection, "min-protection", 1, "how many lost hosts a new stripe must "+
		"survive while too few hosts are up for its scheme; the same on every server")
	f.IntVar(&o.service.RepairsPerSecond, "repairs-per-second", 256, "stripes that the leader gives to "+
		"repair jobs in a second, at most")
	f.IntVar(&o.service.SlowTimes, "slow-times", 10, "drain a device whose puts or reads take this "+
		"many times as long as on the others; -1: never")
	f.IntVar(&o.service.RewriteLive, "rewrite-live", 25, "rewrite stripes of which files use at most "+
		"this many percent; -1: never")
	f.DurationVar(&o.service.RewriteEvery, "rewrite-every", time.Hour, "how often the leader looks "+
		"through files for such stripes; it skips younger stripes")
	f.DurationVar(&o.service.PackAfter, "pack-after", 24*time.Hour, "pack small files with each other "+
		"when nobody has changed them for this long; -1s: never")
	o.rewriteRate = 32 << 20
	f.Var(&o.rewriteRate, "rewrite-rate", "bound of the bytes a second that movers copy from such "+
		"stripes into new ones, in the whole cluster")
	f.DurationVar(&o.service.CheckEvery, "check-interval", 24*time.Hour, "how often the leader checks "+
		"the whole metadata, in the background; -1s: never")
	o.backups.flags(f)
	f.DurationVar(&o.store.HeartbeatTimeout, "election-timeout", 500*time.Millisecond, "silence of the "+
		"leader after which a follower starts an election")
	f.DurationVar(&o.store.LogStall, "log-stall", 2*time.Second, "a server whose log disk hangs this "+
		"long ends, and another leads")
	f.DurationVar(&o.store.LogRetention, "log-retention", 10*time.Minute, "how long the log keeps "+
		"entries for followers that were away")
	o.cache, o.logKeep = 256<<20, 4<<30
	f.Var(&o.cache, "cache", "memory for the block cache of the state")
	f.Var(&o.logKeep, "log-retention-size", "bound of the log entries that the server keeps")
	f.StringVar(&o.imitate, "imitate", "", "for tests of upgrades: act as a server of a later release, "+
		imitateFuture+" or "+imitateHasty)
	_ = f.MarkHidden("imitate") // it is defined above
	return cmd
}

// peerList reads ID=ADDRESS,... into the peers of the log and of the service.
func (o *metadataOptions) peerList() error {
	if len(o.peers) == 0 {
		o.peers = []string{o.id + "=" + o.listen[0]}
	}
	for _, p := range o.peers {
		id, named, _ := strings.Cut(p, "=")
		servers := address.SplitEndpoint(named)
		if id == "" || len(servers) != 1 {
			return cli.UsageError("--peers %q: write ID=HOST:PORT,ID=HOST:PORT,...", p)
		}
		addr := servers[0][0]
		o.store.Peers = append(o.store.Peers, raftstore.Peer{ID: id, Address: addr, Client: []string{addr}})
		o.service.Peers = append(o.service.Peers, metadata.Peer{ID: id, Addresses: []string{addr}})
	}
	if !slices.ContainsFunc(o.store.Peers, func(p raftstore.Peer) bool { return p.ID == o.id }) {
		return cli.UsageError("--peers %s must name all metadata servers: add %s, which is this one", strings.Join(o.peers, ","), o.id)
	}
	return nil
}

func runMetadata(ctx context.Context, env *cli.Env, o metadataOptions) error {
	sec, err := env.Security()
	if err != nil {
		return err
	}
	if sec.Identity != nil {
		claims := sec.Identity.Claims()
		o.id = cmp.Or(o.id, claims.Node)
		o.service.Cluster = claims.Cluster
	}
	if o.id == "" || o.data == "" {
		return cli.UsageError("a metadata server needs --id and --data")
	}
	if err := sec.Require(transport.RoleMetadata, o.id); err != nil {
		return err
	}
	if err := serve.CheckDir("--data", o.data); err != nil {
		return err
	}
	if err := o.peerList(); err != nil {
		return err
	}
	if err := o.checkBootstrap(); err != nil {
		return err
	}
	if o.service.Cluster.IsZero() {
		if o.service.Cluster, err = insecureCluster(ctx, env, &o); err != nil {
			return err
		}
	}
	switch o.imitate {
	case "":
	case imitateFuture, imitateHasty:
		o.service.Future, o.service.Hasty = true, o.imitate == imitateHasty
	default:
		return cli.UsageError("--imitate %q: write %s or %s", o.imitate, imitateFuture, imitateHasty)
	}
	o.service.Node, o.service.Join, o.service.Release = o.id, o.join, cli.Version
	o.store.Dir, o.store.Cluster, o.store.Node = o.data, o.service.Cluster, o.id
	o.store.CacheBytes, o.store.LogRetentionBytes = int64(o.cache), int64(o.logKeep)
	o.service.RewriteBytesPerSecond = int64(o.rewriteRate)
	o.backups.settings(&o.service, o.data)
	return serveMetadata(ctx, env, sec, o)
}

// checkBootstrap refuses a directory that is in no group yet, unless a flag says that this
// is the first start.
func (o *metadataOptions) checkBootstrap() error {
	formed, err := raftstore.Formed(vfs.OS{}, o.data)
	switch {
	case err != nil || formed:
		return err
	case o.bootstrap && o.join:
		return cli.UsageError("--bootstrap starts a new cluster, --join adds a server to a running one: " +
			"give one of them")
	case o.bootstrap:
		return nil
	case o.join && len(o.peers) < 2:
		return cli.UsageError("--join: name at least one server of the cluster in --peers, beside %s", o.id)
	case o.join:
		return nil
	}
	return cli.UsageError("--data %s is not the directory of a metadata server yet. Give --bootstrap at "+
		"the first start of a new cluster, on each server. Give --join to add a server to a running "+
		"one. A server that lost its disk must not return as %s: it has forgotten what it "+
		"acknowledged. Start it with --join under a new id, and run `moraine metadata replace %s "+
		"NEWID=HOST:PORT`", o.data, o.id, o.id)
}

// insecureCluster names the cluster of a server without certificates: as its directory
// says, or the cluster that it joins, or else by its peers.
func insecureCluster(ctx context.Context, env *cli.Env, o *metadataOptions) (moraine.UUID, error) {
	id, err := raftstore.ReadIdentity(vfs.OS{}, o.data)
	if err == nil {
		return id.Cluster, nil
	}
	if !errors.Is(err, moraine.NotFound) {
		return moraine.UUID{}, err
	}
	if !o.join {
		return clusterOfPeers(o.peers), nil
	}
	var others []string
	for _, p := range o.service.Peers {
		if p.ID != o.id {
			others = append(others, p.Addresses...)
		}
	}
	return env.ClusterAt(ctx, strings.Join(others, ","))
}

// clusterOfPeers names a cluster that has no certificates: servers with the same peers
// belong together.
func clusterOfPeers(peers []string) moraine.UUID {
	sum := sha256.Sum256([]byte("moraine insecure " + strings.Join(peers, ",")))
	return moraine.UUID(sum[:16])
}

// raftStream is the log's view of the network: it accepts from the server's
// listener and dials from the pool.
type raftStream struct {
	net.Listener
	pool *transport.Pool
}

// Dial implements raftstore.Stream.
func (s raftStream) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	return s.pool.DialRaft(addr, timeout)
}

func serveMetadata(ctx context.Context, env *cli.Env, sec cli.Security, o metadataOptions) error {
	log, err := env.Log()
	if err != nil {
		return err
	}
	log = log.With("node", o.id)
	if o.imitate != "" {
		log.Warn("acting as a server of a later release, for tests of upgrades", "imitate", o.imitate)
	}
	reg := serve.NewRegistry()
	network := transport.NewMetrics(reg)
	pool, err := sec.Pool(transport.RoleMetadata, o.id, transport.PoolDeps{Log: log, Metrics: network})
	if err != nil {
		return err
	}
	defer pool.Close()
	// The log takes its connections from the server. The server's handler is the service,
	// which needs the log. So the handler is set last.
	handler := &struct{ transport.Handler }{}
	var service *metadata.Server
	server, err := transport.NewServer(
		transport.ServerConfig{Addresses: o.listen, Mode: sec.Mode, Cluster: o.service.Cluster, Role: transport.RoleMetadata, Node: o.id, Release: cli.Version},
		transport.ServerDeps{Handler: handler, Identity: sec.Identity, Log: log, Metrics: network,
			Incarnation: func() moraine.Incarnation { return service.Incarnation() },
			Revoked:     func(p *transport.Peer) bool { return service.Revoked(p) }})
	if err != nil {
		return err
	}
	storeDeps := raftstore.Deps{Log: log, Metrics: raftstore.NewMetrics(reg), Stream: raftStream{server.RaftListener(), pool}}
	service, err = metadata.New(o.service, metadata.Deps{
		NewStore: metadata.OverRaft(o.store, storeDeps), Dial: pool.Metadata, HeedRevoked: pool.SetRevoked, Log: log, Metrics: lead.NewMetrics(reg), Secrets: metadata.DirSecrets{Dir: o.data}, Expires: sec.Expires(),
	})
	if err != nil {
		return err
	}
	handler.Handler = transport.HandlerForMetadata(service)
	collecting, stop := context.WithCancel(ctx)
	defer stop()
	go serve.KeepHeapRoom(collecting, serve.MetadataHeapRoom)
	adm, err := serve.ListenAdmin(o.adminListen, reg, service.Healthy)
	if err != nil {
		return err
	}
	return serve.RunAll(ctx, adm.Run, server.Run, serve.WatchCertificate(sec, log), serve.WhenReady(server, func(ctx context.Context) error {
		form := raftstore.Bootstrap
		if o.join {
			form = raftstore.Join
		}
		if err := form(o.store, storeDeps); err != nil {
			return withRemedy(vfs.OS{}, o.data, err)
		}
		log.Info("serving", "listen", o.listen, "admin", o.adminListen, "mode", sec.Mode)
		return withRemedy(vfs.OS{}, o.data, service.Run(ctx))
	}))
}

const (
	// fullBelow is the free space below which a disk counts as the reason why a server
	// ended.
	fullBelow = 16 << 20
	// startRoom is ample space for the start of a server whose ballast is gone.
	startRoom = 200 << 20
)

// withRemedy adds what to do to the error of a metadata server whose disk is full. The
// first error comes from deep in the state or the log, and does not say it.
func withRemedy(fsys vfs.FS, dir string, err error) error {
	if err == nil {
		return nil
	}
	usage, bad := fsys.Usage(dir)
	if bad != nil || usage.Total == 0 || usage.Free >= fullBelow {
		return err
	}
	return errors.Join(err, fmt.Errorf("the disk of --data %s is full, %s are free. If that is the "+
		"reason, make room there, %s if the ballast is gone, and start the server again. Then remove "+
		"what is not needed (`moraine rm -r`), or move --data to a larger disk", dir, cli.Size(usage.Free), cli.Size(startRoom)))
}
