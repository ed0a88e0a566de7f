package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// cluster is real metadata servers over a shared log in memory, and chunkservers that store
// chunks in maps and fail on request. They run on a network in memory, under synctest's clock.
type cluster struct {
	t       *testing.T
	ctx     context.Context
	net     *memnet.Net
	log     *slog.Logger
	group   *metadatatest.Group
	servers map[string]*metaServer
	hosts   []*chunkHost
	running sync.WaitGroup
}

var clusterUUID = moraine.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// inCluster runs fn with a cluster of three metadata servers and some hosts with one device
// each. It fails if a goroutine is left running.
func inCluster(t *testing.T, hosts int, fn func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		c := &cluster{t: t, ctx: ctx, net: memnet.New(1), log: slog.New(slog.DiscardHandler),
			group: metadatatest.NewGroup(), servers: map[string]*metaServer{}}
		if os.Getenv("TEST_LOG") != "" {
			c.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		defer func() {
			cancel()
			c.running.Wait()
			c.net.Wait()
		}()
		c.startMetadata()
		for i := range hosts {
			c.addHost(fmt.Sprintf("n%d", i+1))
		}
		fn(c)
	})
}

// metaServer lets a test inspect and fail the requests to a metadata server.
type metaServer struct {
	*metadata.Server
	mu   sync.Mutex
	hook func(req *wire.MetaRequest) (after func(*wire.MetaResponse, error) (*wire.MetaResponse, error), err error)
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

// onMeta calls hook with each request before it is served, on all servers. hook may fail the
// request, or return a function that receives the reply.
func (c *cluster) onMeta(hook func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error)) {
	for _, s := range c.servers {
		s.mu.Lock()
		s.hook = hook
		s.mu.Unlock()
	}
}

func (c *cluster) startMetadata() {
	var peers []metadata.Peer
	for i := range 3 {
		id := fmt.Sprintf("m%d", i+1)
		peers = append(peers, metadata.Peer{ID: id, Addresses: []string{memnet.Address(id)}})
	}
	for _, p := range peers {
		s, err := metadata.New(metadata.Config{Node: p.ID, Peers: peers, Cluster: clusterUUID},
			metadata.Deps{NewStore: c.group.Store(p.ID), Log: c.log})
		require.NoError(c.t, err)
		ms := &metaServer{Server: s}
		c.servers[p.ID] = ms
		_, err = c.net.Listen(p.ID, memnet.Options{Role: transport.RoleMetadata, Cluster: clusterUUID,
			Handler: transport.HandlerForMetadata(ms)})
		require.NoError(c.t, err)
		c.running.Go(func() {
			if err := s.Run(c.ctx); err != nil {
				c.t.Errorf("run %s: %v", p.ID, err)
			}
		})
	}
	c.elect("m1")
}

// elect makes id the leader and waits until it serves.
func (c *cluster) elect(id string) {
	c.t.Helper()
	c.group.Elect(id)
	synctest.Wait()
	if id != "" {
		require.True(c.t, c.servers[id].Status().Leading)
	}
}

func (c *cluster) peer(role transport.Role, node string) transport.Peer {
	return transport.Peer{Cluster: clusterUUID, Role: role, Node: node, Scope: "/"}
}

// config is small: chunks of 64 KiB, so that a test has many stripes.
func config() client.Config {
	return client.Config{Metadata: [][]string{{memnet.Address("m1")}, {memnet.Address("m2")}, {memnet.Address("m3")}},
		ChunkBytes: 64 << 10, MemoryBytes: 32 << 20}
}

// dial opens a client on the given node, closed at the end of the test.
func (c *cluster) dial(node string, cfg client.Config) *client.Client {
	c.t.Helper()
	return c.dialAs(c.peer(transport.RoleClient, node), cfg)
}

func (c *cluster) dialAs(peer transport.Peer, cfg client.Config) *client.Client {
	c.t.Helper()
	d := c.net.Dialer(peer)
	cl, err := client.Dial(c.ctx, cfg, client.Deps{Dialer: d, Log: c.log})
	require.NoError(c.t, err)
	c.t.Cleanup(func() {
		require.Zero(c.t, client.Held(cl), "bytes of buffers still held")
		require.NoError(c.t, d.Close())
	})
	return cl
}

func sum(p []byte) uint32 { return crc.Sum(p) }

// bytesOf returns n random bytes of a seed.
func bytesOf(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = rng.Read(b)
	return b
}

// within returns a context that ends d from now.
func (c *cluster) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(c.ctx, d)
	c.t.Cleanup(cancel)
	return ctx
}
