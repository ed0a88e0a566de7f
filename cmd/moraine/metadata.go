package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
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
	service     metadata.Config
	store       raftstore.Config
	cache       sizeFlag
	logKeep     sizeFlag
	rewriteRate sizeFlag
}

func (a *app) metadataCommand() *cobra.Command {
	var o metadataOptions
	cmd := &cobra.Command{
		Use:     "metadata",
		GroupID: groupServers,
		Short:   "Run a metadata server, or look at and change which there are",
		Long: `Run one of the servers that keep the namespace, replicated by Raft. A cluster
has 1, 3 or 5 of them; a majority must be up. The first start of a new cluster
is told so by --bootstrap: it forms the group of --peers, and every server must be
given the same peers. Later starts find the group in --data.

A server that is to be added to a cluster that runs is started with --join, under an
id that was never used, with itself and at least one of the others in --peers; then
"moraine metadata add" makes it a member. --peers of the others need not change.

Without one of the two an empty --data is refused: a server that has lost its disk has
forgotten what it acknowledged, and must not vote under its old id.

The commands below are for people: they ask the cluster that --endpoint names.`,
		Example: `  moraine metadata --id m1 --data /var/lib/moraine --listen 0.0.0.0:7400 \
    --peers m1=host1:7400,m2=host2:7400,m3=host3:7400 --certs /etc/moraine/certs --bootstrap`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.service.RewriteLive == 0 || o.service.PackAfter == 0 {
				return usageError("--rewrite-live and --pack-after cannot be 0: -1 of the first turns rewriting off, and -1s of the second turns packing off")
			}
			if o.service.SlowTimes == 0 {
				return usageError("--slow-times cannot be 0: -1 turns it off")
			}
			if err := o.backups.check(); err != nil {
				return err
			}
			if o.service.CheckEvery == 0 {
				return usageError("--check-interval cannot be 0: -1s turns checks off")
			}
			return a.runMetadata(cmd.Context(), o)
		},
	}
	cmd.AddCommand(a.metadataListCommand(), a.metadataAddCommand(), a.metadataRemoveCommand(), a.metadataReplaceCommand(), a.metadataStatusCommand(),
		a.metadataBackupCommand(), a.metadataRestoreCommand(), a.metadataForceCommand())
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "node id, as in the certificate")
	f.StringVar(&o.data, "data", "", "directory for the log and the state")
	f.StringSliceVar(&o.listen, "listen", []string{"127.0.0.1:" + defaultMetadataPort}, "address to serve at, HOST:PORT or unix:PATH; may be repeated")
	f.StringVar(&o.adminListen, "admin-listen", "127.0.0.1:7401", "address of /metrics, /healthz and /debug/pprof")
	f.StringSliceVar(&o.peers, "peers", nil, "all metadata servers, this one too: ID=HOST:PORT,...")
	f.BoolVar(&o.bootstrap, "bootstrap", false, "this is the first start of a new cluster: form its group in an empty --data")
	f.BoolVar(&o.join, "join", false, "this is the first start of a server that is to be added to a cluster that runs")
	f.DurationVar(&o.service.SessionTimeout, "session-timeout", time.Minute, "a client's session ends this long after its last renewal")
	f.DurationVar(&o.service.Grace, "grace", time.Minute, "dead chunks are kept this long before they are deleted")
	f.DurationVar(&o.service.Suspect, "suspect-after", 3*time.Second, "nothing new is placed on a host that was silent this long")
	f.DurationVar(&o.service.RepairGrace, "repair-grace", metadata.DefaultRepairGrace, "what a silent host holds is rebuilt elsewhere after this long")
	f.DurationVar(&o.service.SettleTime, "bucket-settle", 15*time.Minute, "a change of the bucket whose reply was not seen may still arrive this long after its mover's lease; the same on every server")
	f.IntVar(&o.service.MinProtection, "min-protection", 1, "hosts that every new stripe must be able to lose while too few are up for its scheme; the same on every server")
	f.IntVar(&o.service.RepairsPerSecond, "repairs-per-second", 256, "bound of the stripes given to repair jobs")
	f.IntVar(&o.service.SlowTimes, "slow-times", 10, "a device is drained on which puts or reads take so many times as long as on the others; -1: none")
	f.IntVar(&o.service.RewriteLive, "rewrite-live", 25, "stripes are rewritten of which files use at most so many percent any more; -1: none")
	f.DurationVar(&o.service.RewriteEvery, "rewrite-every", time.Hour, "files are looked through for such stripes this often; younger stripes are left alone")
	f.DurationVar(&o.service.PackAfter, "pack-after", 24*time.Hour, "small files that nobody has changed for this long are packed with each other; -1s: none")
	o.rewriteRate = 32 << 20
	f.Var(&o.rewriteRate, "rewrite-rate", "bound of the bytes a second that are put out of such stripes into new ones, in the whole cluster")
	f.DurationVar(&o.service.CheckEvery, "check-interval", 24*time.Hour, "the leader checks the whole metadata this often, in the background; -1s: never")
	o.backups.flags(f)
	f.DurationVar(&o.store.HeartbeatTimeout, "election-timeout", 500*time.Millisecond, "a follower campaigns after this long without its leader")
	f.DurationVar(&o.store.LogStall, "log-stall", 2*time.Second, "a server whose disk hangs this long gives up its place")
	f.DurationVar(&o.store.LogRetention, "log-retention", 10*time.Minute, "log entries are kept this long for followers that were away")
	o.cache, o.logKeep = 256<<20, 4<<30
	f.Var(&o.cache, "cache", "memory for blocks of the state")
	f.Var(&o.logKeep, "log-retention-size", "bound of the log entries kept")
	return cmd
}

// peerList reads ID=ADDRESS,... into the peers of both parts.
func (o *metadataOptions) peerList() error {
	if len(o.peers) == 0 {
		o.peers = []string{o.id + "=" + o.listen[0]}
	}
	for _, p := range o.peers {
		id, addr, ok := strings.Cut(p, "=")
		if !ok || id == "" || addr == "" {
			return usageError("--peers %q: write ID=HOST:PORT,ID=HOST:PORT,...", p)
		}
		addr = withPort(addr, defaultMetadataPort)
		o.store.Peers = append(o.store.Peers, raftstore.Peer{ID: id, Address: addr, Client: []string{addr}})
		o.service.Peers = append(o.service.Peers, metadata.Peer{ID: id, Addresses: []string{addr}})
	}
	if !slices.ContainsFunc(o.store.Peers, func(p raftstore.Peer) bool { return p.ID == o.id }) {
		return usageError("--peers %s: it names all metadata servers, but %s, which is this one, is not among them", strings.Join(o.peers, ","), o.id)
	}
	return nil
}

func (a *app) runMetadata(ctx context.Context, o metadataOptions) error {
	sec, err := a.security()
	if err != nil {
		return err
	}
	if sec.identity != nil {
		claims := sec.identity.Claims()
		if o.id == "" {
			o.id = claims.Node
		}
		o.service.Cluster = claims.Cluster
	}
	if o.id == "" || o.data == "" {
		return usageError("a metadata server needs --id and --data")
	}
	if err := sec.require(transport.RoleMetadata, o.id); err != nil {
		return err
	}
	if err := checkDir("--data", o.data); err != nil {
		return err
	}
	if err := o.peerList(); err != nil {
		return err
	}
	if err := o.checkBootstrap(); err != nil {
		return err
	}
	if o.service.Cluster.IsZero() {
		if o.service.Cluster, err = a.insecureCluster(ctx, &o); err != nil {
			return err
		}
	}
	o.service.Node, o.service.Join, o.service.Release = o.id, o.join, version
	o.store.Dir, o.store.Cluster, o.store.Node = o.data, o.service.Cluster, o.id
	o.store.CacheBytes, o.store.LogRetentionBytes = int64(o.cache), int64(o.logKeep)
	o.service.RewriteBytesPerSecond = int64(o.rewriteRate)
	o.backups.settings(&o.service, o.data)
	return a.serveMetadata(ctx, sec, o)
}

// checkBootstrap refuses a directory that has joined no group yet, unless this
// is said to be the first start.
func (o *metadataOptions) checkBootstrap() error {
	formed, err := raftstore.Formed(vfs.OS{}, o.data)
	switch {
	case err != nil || formed:
		return err
	case o.bootstrap && o.join:
		return usageError("--bootstrap begins a new cluster, --join a server of one that runs: give one of them")
	case o.bootstrap:
		return nil
	case o.join && len(o.peers) < 2:
		return usageError("--join: name at least one server of the cluster in --peers, beside %s", o.id)
	case o.join:
		return nil
	}
	return usageError("--data %s holds no metadata server yet: give --bootstrap at the first start of a new cluster, on each server, or --join to a server that is to be added to one that runs; one that lost its disk must not come back as %s, as it has forgotten what it acknowledged: start it with --join under a new id, and `moraine metadata replace %s NEWID=HOST:PORT`", o.data, o.id, o.id)
}

// insecureCluster names the cluster of a server without certificates: as its
// directory says, or the cluster that it is to join, or else by its peers.
func (a *app) insecureCluster(ctx context.Context, o *metadataOptions) (moraine.UUID, error) {
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
	return a.clusterAt(ctx, strings.Join(others, ","))
}

// checkDir refuses what is there and is no directory.
func checkDir(flag, dir string) error {
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return usageError("%s %s: that is a file: name a directory; one that is missing is made", flag, dir)
	}
	return nil
}

// clusterOfPeers names a cluster that has no certificates: servers that were
// given the same peers belong together.
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

func (a *app) serveMetadata(ctx context.Context, sec security, o metadataOptions) error {
	log, err := a.log()
	if err != nil {
		return err
	}
	log = log.With("node", o.id)
	reg := newRegistry()
	network := transport.NewMetrics(reg)
	pool, err := sec.pool(transport.RoleMetadata, o.id, transport.PoolDeps{Log: log, Metrics: network})
	if err != nil {
		return err
	}
	defer pool.Close()
	// The log takes its connections from the server, whose handler is the
	// service that stands on the log: the handler is filled in last.
	handler := &struct{ transport.Handler }{}
	var service *metadata.Server
	server, err := transport.NewServer(
		transport.ServerConfig{Addresses: o.listen, Mode: sec.mode, Cluster: o.service.Cluster, Role: transport.RoleMetadata, Node: o.id, Release: version},
		transport.ServerDeps{Handler: handler, Identity: sec.identity, Log: log, Metrics: network,
			Incarnation: func() moraine.Incarnation { return service.Incarnation() },
			Revoked:     func(p *transport.Peer) bool { return service.Revoked(p) }})
	if err != nil {
		return err
	}
	storeDeps := raftstore.Deps{Log: log, Metrics: raftstore.NewMetrics(reg), Stream: raftStream{server.RaftListener(), pool}}
	service, err = metadata.New(o.service, metadata.Deps{
		NewStore: metadata.OverRaft(o.store, storeDeps), Dial: pool.Metadata, HeedRevoked: pool.SetRevoked, Log: log, Metrics: metadata.NewMetrics(reg), Secrets: metadata.DirSecrets{Dir: o.data}, Expires: sec.expires(),
	})
	if err != nil {
		return err
	}
	handler.Handler = transport.HandlerForMetadata(service)
	collecting, stop := context.WithCancel(ctx)
	defer stop()
	go keepHeapRoom(collecting, metadataHeapRoom)
	adm, err := listenAdmin(o.adminListen, reg, service.Healthy)
	if err != nil {
		return err
	}
	return runAll(ctx, adm.run, server.Run, watchCertificate(sec, log), whenReady(server, func(ctx context.Context) error {
		form := raftstore.Bootstrap
		if o.join {
			form = raftstore.Join
		}
		if err := form(o.store, storeDeps); err != nil {
			return withRemedy(vfs.OS{}, o.data, err)
		}
		log.Info("serving", "listen", o.listen, "admin", o.adminListen, "mode", sec.mode)
		return withRemedy(vfs.OS{}, o.data, service.Run(ctx))
	}))
}

const (
	// fullBelow is how little is free on a disk that a server ended for, if it did.
	fullBelow = 16 << 20
	// startRoom is what a server whose ballast is gone needs to start, amply.
	startRoom = 200 << 20
)

// withRemedy adds to what a metadata server ended with, where its disk is full,
// what to do: what fails then, deep in the state or the log, does not say.
func withRemedy(fsys vfs.FS, dir string, err error) error {
	if err == nil {
		return nil
	}
	usage, bad := fsys.Usage(dir)
	if bad != nil || usage.Total == 0 || usage.Free >= fullBelow {
		return err
	}
	return errors.Join(err, fmt.Errorf("the disk of --data %s is full, %s are free: where that is why, make room there, %s if the ballast is gone, and start the server again; "+
		"then remove what is not needed (`moraine rm -r`), or move --data to a larger disk", dir, size(usage.Free), size(startRoom)))
}

// whenReady is run, begun when the server has its ports: a process that cannot
// have them touches no directory.
func whenReady(server *transport.Server, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-server.Ready():
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// runAll runs the parts of a server until ctx ends or one of them fails, and
// returns when all have ended.
func runAll(ctx context.Context, parts ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	return listenHint(g.Wait())
}
