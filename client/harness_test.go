package client_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
)

// cluster is a cluster inside a test, with what all tests of the client use.
type cluster struct {
	*memcluster.Cluster
	t   *testing.T
	ctx context.Context
}

// inCluster runs fn with a cluster of three metadata servers and some hosts with one device
// each, under synctest's clock. It fails if a goroutine is left running.
func inCluster(t *testing.T, hosts int, fn func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, stop := memcluster.Start(t, memcluster.Options{Hosts: hosts})
		defer stop()
		fn(&cluster{c, t, c.Context()})
	})
}

// elect makes id the leader and waits until it serves.
func (c *cluster) elect(id string) {
	c.t.Helper()
	c.Elect(id)
	synctest.Wait()
	require.True(c.t, c.Leads(id))
}

// config is small: chunks of 64 KiB, so that a test has many stripes.
func config() client.Config {
	return client.Config{Metadata: memcluster.Endpoints(), ChunkBytes: 64 << 10, MemoryBytes: 32 << 20}
}

// dial opens a client on the given node, closed at the end of the test.
func (c *cluster) dial(node string, cfg client.Config) *client.Client {
	c.t.Helper()
	return c.dialAs(memcluster.Peer(transport.RoleClient, node), cfg)
}

func (c *cluster) dialAs(peer transport.Peer, cfg client.Config) *client.Client {
	c.t.Helper()
	cl := c.Dial(peer, cfg)
	c.t.Cleanup(func() { require.Zero(c.t, client.Held(cl), "bytes of buffers still held") })
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
