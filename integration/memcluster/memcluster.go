// Package memcluster is a cluster inside a test, on a network in memory. It has
// three real metadata servers over one log in memory, and chunkservers that
// keep chunks in maps. Under testing/synctest it runs hours in milliseconds. It
// tests the users of a cluster (checkpoints, movers), not the cluster: it has
// no Raft, disk or socket.
//
// One path through it: Start starts the cluster. Client("rank-0") opens a client,
// or Mover("n1") one that acts as a chunkserver's. Hosts[1].Kill(), Elect("m2") and
// OnMeta inject faults, such as a lost reply. The test's end stops everything.
package memcluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// Options of a cluster; a zero means the default.
type Options struct {
	// Hosts is the number of chunkservers, n1 and so on, of one device each.
	// Default 6.
	Hosts int
	// SessionTimeout and RepairGrace are those of package metadata; its own
	// defaults are 60 s and 10 min.
	SessionTimeout, RepairGrace time.Duration
	// RewriteEvery is that of package metadata. Default 1 h.
	RewriteEvery time.Duration
	// PackAfter (24 h) and BackupHorizon (none) are those of package metadata.
	PackAfter, BackupHorizon time.Duration
	// ChunkBytes is that of the clients. Default 64 KiB.
	ChunkBytes int64
}

// Cluster is a cluster inside a test.
type Cluster struct {
	Net   *memnet.Net
	Hosts []*Host

	t       testing.TB
	ctx     context.Context
	log     *slog.Logger
	group   *metadatatest.Group
	servers map[string]*metaServer
	running sync.WaitGroup
	atStop  []func()

	chunkBytes int64
}

var clusterID = moraine.UUID{0x6d, 0x65, 0x6d, 1}

// Start runs a cluster led by m1. stop ends everything, and returns when it has; a
// test calls it before its synctest bubble ends.
func Start(t testing.TB, opts Options) (c *Cluster, stop func()) {
	t.Helper()
	opts.Hosts = cmp.Or(opts.Hosts, 6)
	opts.ChunkBytes = cmp.Or(opts.ChunkBytes, 64<<10)
	ctx, cancel := context.WithCancel(context.Background())
	c = &Cluster{Net: memnet.New(1), t: t, ctx: ctx, log: slog.New(slog.DiscardHandler),
		group: metadatatest.NewGroup(), servers: make(map[string]*metaServer), chunkBytes: opts.ChunkBytes}
	if os.Getenv("TEST_LOG") != "" {
		c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c.startMetadata(opts)
	for i := range opts.Hosts {
		h := &Host{c: c, ID: fmt.Sprintf("n%d", i+1), chunks: make(map[moraine.ChunkID]*chunk)}
		c.Hosts = append(c.Hosts, h)
		h.Start()
	}
	return c, func() {
		for _, fn := range slices.Backward(c.atStop) {
			fn()
		}
		cancel()
		c.running.Wait()
		c.Net.Wait()
	}
}

func (c *Cluster) startMetadata(opts Options) {
	var peers []metadata.Peer
	for i := range 3 {
		id := fmt.Sprintf("m%d", i+1)
		peers = append(peers, metadata.Peer{ID: id, Addresses: []string{memnet.Address(id)}})
	}
	for _, p := range peers {
		s, err := metadata.New(metadata.Config{Node: p.ID, Peers: peers, Cluster: clusterID,
			SessionTimeout: opts.SessionTimeout, RepairGrace: opts.RepairGrace, RewriteEvery: opts.RewriteEvery,
			PackAfter: opts.PackAfter, BackupHorizon: opts.BackupHorizon},
			metadata.Deps{NewStore: c.group.Store(p.ID), Log: c.log})
		require.NoError(c.t, err)
		ms := &metaServer{Server: s}
		c.servers[p.ID] = ms
		_, err = c.Net.Listen(p.ID, memnet.Options{Role: transport.RoleMetadata, Cluster: clusterID,
			Handler: transport.HandlerForMetadata(ms)})
		require.NoError(c.t, err)
		c.running.Go(func() {
			if err := s.Run(c.ctx); err != nil {
				c.t.Errorf("run %s: %v", p.ID, err)
			}
		})
	}
	c.Elect("m1")
}

// Elect makes a metadata server the leader, or none for "". A new leader needs a
// moment before it serves.
func (c *Cluster) Elect(id string) { c.group.Elect(id) }

// AtStop registers fn to run first when the cluster stops; the last one registered
// runs before the others.
func (c *Cluster) AtStop(fn func()) { c.atStop = append(c.atStop, fn) }

// Run runs fn until the cluster stops.
func (c *Cluster) Run(fn func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	c.running.Go(func() {
		defer close(ended)
		if err := fn(ctx); err != nil {
			c.t.Errorf("run: %v", err)
		}
	})
	return func() { cancel(); <-ended }
}

func peer(role transport.Role, node string) transport.Peer {
	return transport.Peer{Cluster: clusterID, Role: role, Node: node, Scope: "/"}
}

// Client opens a client whose certificate names node.
func (c *Cluster) Client(node string) *client.Client { return c.dial(transport.RoleClient, node) }

// Mover opens a client that acts as the chunkserver node does.
func (c *Cluster) Mover(node string) *client.Client { return c.dial(transport.RoleChunkserver, node) }

// dial opens a client with small chunks, so that little data makes many stripes.
func (c *Cluster) dial(role transport.Role, node string) *client.Client {
	c.t.Helper()
	d := c.Net.Dialer(peer(role, node))
	cl, err := client.Dial(c.ctx, client.Config{ChunkBytes: c.chunkBytes, MemoryBytes: 64 << 20,
		Metadata: [][]string{{memnet.Address("m1")}, {memnet.Address("m2")}, {memnet.Address("m3")}}},
		client.Deps{Dialer: d, Log: c.log})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { d.Close() })
	return cl
}

// Ask sends a request to the leader in the name of a peer of that role, outside of
// any session.
func (c *Cluster) Ask(role transport.Role, node string, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	d := c.Net.Dialer(peer(role, node))
	defer d.Close()
	ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
	defer cancel()
	return d.Metadata([]string{memnet.Address(c.group.Leader())}).Do(ctx, req)
}

// MetaHook sees a request before it is served. It may fail the request, or return a
// function that sees, and may replace, the answer.
type MetaHook func(req *wire.MetaRequest) (after func(*wire.MetaResponse, error) (*wire.MetaResponse, error), err error)

// OnMeta sets the hook for each request to a metadata server; nil for none.
func (c *Cluster) OnMeta(hook MetaHook) {
	for _, s := range c.servers {
		s.mu.Lock()
		s.hook = hook
		s.mu.Unlock()
	}
}

// metaServer is a metadata server with a hook in front of it.
type metaServer struct {
	*metadata.Server
	mu   sync.Mutex
	hook MetaHook
}

func (m *metaServer) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	if _, leases := req.Op.(*wire.MetaRequest_Leases); hook == nil || leases { // those come at any time
		return m.Server.Do(ctx, req)
	}
	after, err := hook(req)
	if err != nil {
		return nil, err
	}
	resp, err := m.Server.Do(ctx, req)
	if after != nil {
		return after(resp, err)
	}
	return resp, err
}
