package incluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/mover"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/capability/capabilitytest"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// raftStream is the log's view of the network.
type raftStream struct {
	net.Listener
	node *memnet.Node
}

// Dial implements raftstore.Stream.
func (s raftStream) Dial(addr string, timeout time.Duration) (net.Conn, error) {
	return s.node.DialRaft(addr, timeout)
}

// raftConfig has small limits, so that logs are truncated, tables flushed and
// snapshots taken within the life of a test.
func (n *node) raftConfig() raftstore.Config {
	cfg := raftstore.Config{
		Dir: "/metadata", Cluster: clusterID, Node: n.id,
		SegmentBytes: 256 << 10, MemTableBytes: n.c.opts.MemTableBytes, CacheBytes: 1 << 20, BallastBytes: -1,
		SnapshotInterval: 2 * time.Second, SnapshotEntries: n.c.opts.SnapshotEntries, LogRetention: time.Nanosecond,
		LogStall: time.Minute, // these disks do not hang, but the machine of a test may be busy
		// An idle leader otherwise sends each follower thirteen messages a second, on
		// which a test of many minutes spends a third of its time.
		CommitTimeout: 500 * time.Millisecond,
	}
	for _, m := range n.c.nodes {
		if m.role == transport.RoleMetadata {
			addr := memnet.Address(m.id)
			cfg.Peers = append(cfg.Peers, raftstore.Peer{ID: m.id, Address: addr, Client: []string{addr}})
		}
	}
	return cfg
}

// buildMetadata makes a metadata server, as `moraine metadata` does.
func (n *node) buildMetadata(l *life, fs vfs.FS) (func(context.Context) error, error) {
	log := n.c.opts.Log.With("node", n.id)
	handler := &struct{ transport.Handler }{}
	store := n.raftConfig()
	cfg := metadata.Config{Node: n.id, Cluster: clusterID, SessionTimeout: n.c.opts.SessionTimeout,
		Grace: n.c.opts.Grace, RepairGrace: n.c.opts.RepairGrace, SettleTime: n.c.opts.SettleTime, TokenLife: n.c.opts.TokenLife, KeyLife: n.c.opts.KeyLife, RewriteEvery: n.c.opts.RewriteEvery, BackupHorizon: n.c.opts.BackupHorizon, PackAfter: n.c.opts.PackAfter}
	if n.c.opts.BackupEvery > 0 {
		cfg.BackupDir, cfg.BackupEvery, cfg.BackupKeep = BackupDir, n.c.opts.BackupEvery, 3
	}
	for _, p := range store.Peers {
		cfg.Peers = append(cfg.Peers, metadata.Peer{ID: p.ID, Addresses: p.Client})
	}
	// The log gets its connections from the node, whose handler is the service over
	// the log: both are filled in when the service exists.
	stream := &raftStream{}
	deps := raftstore.Deps{FS: fs, Log: log, Stream: stream}
	peers := n.c.Net.Dialer(transport.Peer{Cluster: clusterID, Role: transport.RoleMetadata, Node: n.id})
	service, err := metadata.New(cfg, metadata.Deps{FS: fs, Log: log, Dial: peers.Metadata, NewStore: func(fsm metadata.FSM) (metadata.Store, error) {
		s, err := metadata.OverRaft(store, deps)(fsm)
		if err == nil && n.c.opts.Store != nil {
			s = n.c.opts.Store(n.id, s)
		}
		l.store = s
		return s, err
	}, Clock: n.clock()})
	if err != nil {
		return nil, err
	}
	handler.Handler = transport.HandlerForMetadata(service)
	l.net, err = n.c.Net.Listen(n.id, memnet.Options{Role: transport.RoleMetadata, Cluster: clusterID, Handler: handler})
	if err != nil {
		return nil, err
	}
	stream.Listener, stream.node = l.net.RaftListener(), l.net
	l.healthy, l.inUse = func() bool { return service.Healthy() == nil }, service.InUse
	l.leads = func() bool { _, here := l.store.Leader(); return here }
	return func(ctx context.Context) error {
		defer peers.Close()
		if err := raftstore.Bootstrap(store, deps); err != nil {
			return err
		}
		return service.Run(ctx)
	}, nil
}

// clock is that of the service of a metadata server, nil for the default.
func (n *node) clock() clock.Clock {
	if n.c.opts.Clock == nil {
		return nil
	}
	return n.c.opts.Clock(n.id)
}

// lateMeta is a metadata service reached by a session that is opened when the
// server runs.
type lateMeta struct{ c *client.Client }

// Do implements transport.Metadata. The chunkservers of this cluster also accept
// the signatures of package capabilitytest.
func (m *lateMeta) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	resp, err := rawclient.Of(m.c).Meta(ctx, req)
	if r := resp.GetRegisterHost(); r != nil {
		r.Keys = append(r.Keys, capabilitytest.Key())
	}
	if r := resp.GetHeartbeat(); r != nil {
		r.Keys = append(r.Keys, capabilitytest.Key())
	}
	return resp, err
}

// buildChunkserver makes a chunkserver with its mover, as `moraine chunkserver`
// does.
func (n *node) buildChunkserver(l *life, fs vfs.FS) (func(context.Context) error, error) {
	log := n.c.opts.Log.With("node", n.id)
	cfg := chunkserver.Config{Node: n.id, Addresses: []string{memnet.Address(n.id)}, Cluster: clusterID, MemoryBytes: 64 << 20, ScrubInterval: n.c.opts.ScrubInterval, ScrubParity: n.c.opts.ScrubParity}
	for i := range n.c.opts.Devices {
		cfg.Devices = append(cfg.Devices, n.c.deviceConfig(fmt.Sprintf("/device%d", i+1)))
	}
	meta := &lateMeta{}
	l.metrics = n.c.Metrics.server()
	deps, moves := chunkserver.Deps{Meta: meta, FS: fs, Log: log, Metrics: l.metrics}, mover.Deps{Log: log}
	deps.CheckParity = func(ctx context.Context, w *wire.Stripe) (uint32, error) {
		return rawclient.Of(meta.c).CheckParity(ctx, w)
	}
	if n.c.opts.Meta != nil {
		deps.Meta = n.c.opts.Meta(n.id, meta)
	}
	if n.c.opts.Bucket != nil {
		bucket, err := n.c.opts.Bucket(n.id)
		if err != nil {
			return nil, err
		}
		cfg.Bucket, deps.Bucket, moves.Bucket = bucket.URL(), bucket, bucket
	}
	service, err := chunkserver.New(cfg, deps)
	if err != nil {
		return nil, err
	}
	bounded, err := chunkserver.NewNeighbour(service, chunkserver.Limits{}, chunkserver.NeighbourDeps{Metrics: l.metrics, Log: log})
	if err != nil {
		return nil, err
	}
	var chunks transport.ChunkService = bounded
	if n.c.opts.Chunks != nil {
		chunks = n.c.opts.Chunks(n.id, bounded)
	}
	l.net, err = n.c.Net.Listen(n.id, memnet.Options{Role: transport.RoleChunkserver, Cluster: clusterID,
		Handler: transport.HandlerForChunks(chunks), Keys: service.Key})
	if err != nil {
		return nil, err
	}
	l.service = service
	addresses := n.c.addresses() // now: nodes may be added while it runs
	l.healthy, l.inUse = func() bool { return service.Healthy() == nil }, service.InUse
	return func(ctx context.Context) error {
		if err := n.format(fs); err != nil {
			return err
		}
		d := n.c.Net.Dialer(transport.Peer{Cluster: clusterID, Role: transport.RoleChunkserver, Node: n.id, Scope: "/"})
		if n.c.opts.Dialer != nil {
			d = n.c.opts.Dialer(n.id, d)
		}
		defer d.Close()
		deps := client.Deps{Dialer: d, Log: log, Metrics: n.c.Metrics.peer()}
		session, err := dialPatiently(ctx, client.Config{Metadata: addresses, MemoryBytes: 32 << 20, CacheEntries: -1}, deps)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		defer session.Close()
		meta.c, moves.Client = session, session
		return n.serveChunks(ctx, l, service, moves)
	}, nil
}

func (n *node) serveChunks(ctx context.Context, l *life, service *chunkserver.Server, deps mover.Deps) error {
	m, err := mover.New(mover.Config{}, deps)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ignoreEnd(ctx, service.Run(ctx)) })
	g.Go(func() error {
		select {
		case <-service.Ready():
			if !l.gone.Load() {
				n.formatted.Store(true)
			}
			return ignoreEnd(ctx, m.Run(ctx))
		case <-ctx.Done():
			return nil
		}
	})
	return g.Wait()
}

// dialPatiently opens a session as soon as the metadata servers answer.
func dialPatiently(ctx context.Context, cfg client.Config, deps client.Deps) (*client.Client, error) {
	for {
		c, err := client.Dial(ctx, cfg, deps)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		switch moraine.KindOf(err) {
		case moraine.Unavailable, moraine.Timeout, moraine.NotLeader:
		default:
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ignoreEnd drops an error that only says that ctx has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, moraine.Canceled)) {
		return nil
	}
	return err
}
