package incluster

import (
	"slices"
	"sync"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/client"
)

// metrics are those of all processes that the cluster has had, including ended
// ones.
type metrics struct {
	mu      sync.Mutex // guards the fields below
	servers []*chunkserver.Metrics
	own     []*client.Metrics // of the chunkservers' own clients
	clients []*client.Metrics // of the clients of tests
}

// ServerMetrics are those of all chunkserver processes so far. PeerMetrics are
// those of the clients by which they repair and move, and ClientMetrics those of
// the cluster's clients.
func (c *Cluster) ServerMetrics() []*chunkserver.Metrics {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	return slices.Clone(c.counts.servers)
}

// PeerMetrics is described at ServerMetrics.
func (c *Cluster) PeerMetrics() []*client.Metrics {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	return slices.Clone(c.counts.own)
}

// ClientMetrics is described at ServerMetrics.
func (c *Cluster) ClientMetrics() []*client.Metrics {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	return slices.Clone(c.counts.clients)
}

func (m *metrics) server() *chunkserver.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servers = append(m.servers, chunkserver.NewMetrics(nil))
	return m.servers[len(m.servers)-1]
}

func (m *metrics) peer() *client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = append(m.own, client.NewMetrics(nil))
	return m.own[len(m.own)-1]
}

func (m *metrics) client() *client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients = append(m.clients, client.NewMetrics(nil))
	return m.clients[len(m.clients)-1]
}
