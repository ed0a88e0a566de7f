// Package memcluster is a cluster inside a test, on a network in memory. It has
// three real metadata servers over one log in memory, and chunkservers that
// keep chunks in maps. Under testing/synctest it runs hours in milliseconds. It
// tests the users of a cluster (clients, checkpoints, movers), not the cluster: it
// has no Raft, disk or socket.
//
// One path through it: Start starts the cluster. Client("rank-0") opens a client,
// or Mover("n1") one that acts as a chunkserver's. Hosts[1].Kill(), Elect("m2") and
// OnMeta inject faults, such as a lost reply; Before and Break of a host make it fail
// requests or serve wrong bytes. stop, at the test's end, stops everything.
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
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
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
	// Log receives what the servers log, and the clients that Dial opens.
	Log *slog.Logger

	t       testing.TB
	ctx     context.Context
	group   *metadatatest.Group
	servers map[string]*metaServer
	running sync.WaitGroup
	atStop  []func()

	chunkBytes int64
}

// ClusterID is the number of each cluster of this package.
var ClusterID = moraine.UUID{0x6d, 0x65, 0x6d, 1}

// Start runs a cluster led by m1. stop ends everything, and returns when it has; a
// test calls it before its synctest bubble ends.
func Start(t testing.TB, opts Options) (c *Cluster, stop func()) {
	t.Helper()
	opts.Hosts = cmp.Or(opts.Hosts, 6)
	opts.ChunkBytes = cmp.Or(opts.ChunkBytes, 64<<10)
	ctx, cancel := context.WithCancel(context.Background())
	c = &Cluster{Net: memnet.New(1), t: t, ctx: ctx, Log: slog.New(slog.DiscardHandler),
		group: metadatatest.NewGroup(), servers: make(map[string]*metaServer), chunkBytes: opts.ChunkBytes}
	if os.Getenv("TEST_LOG") != "" {
		c.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c.startMetadata(opts)
	for i := range opts.Hosts {
		h := newHost(c, fmt.Sprintf("n%d", i+1))
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

// Context ends when the cluster stops.
func (c *Cluster) Context() context.Context { return c.ctx }

// Peer is the identity of a node in that role.
func Peer(role transport.Role, node string) transport.Peer {
	return transport.Peer{Cluster: ClusterID, Role: role, Node: node, Scope: "/"}
}

// Client opens a client whose certificate names node.
func (c *Cluster) Client(node string) *client.Client {
	c.t.Helper()
	return c.Dial(Peer(transport.RoleClient, node), c.config())
}

// Mover opens a client that acts as the chunkserver node does.
func (c *Cluster) Mover(node string) *client.Client {
	c.t.Helper()
	return c.Dial(Peer(transport.RoleChunkserver, node), c.config())
}

// config has small chunks, so that little data makes many stripes.
func (c *Cluster) config() client.Config {
	return client.Config{Metadata: Endpoints(), ChunkBytes: c.chunkBytes, MemoryBytes: 64 << 20, InlineBytes: -1}
}

// Dial opens a client of that identity. Its connections end with the
// test.
func (c *Cluster) Dial(peer transport.Peer, cfg client.Config) *client.Client {
	c.t.Helper()
	d := c.Net.Dialer(peer)
	cl, err := client.Dial(c.ctx, cfg, client.Deps{Dialer: d, Log: c.Log})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, d.Close()) })
	return cl
}
