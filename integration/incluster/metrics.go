package incluster

import (
	"slices"
	"sync"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/client"
)

// Metrics are the metrics of all processes that the cluster has had, including
// ended ones. It is safe for concurrent use.
type Metrics struct {
	mu      sync.Mutex // guards the fields below
	servers []*chunkserver.Metrics
	peers   []*client.Metrics
	clients []*client.Metrics
}

// Servers are the metrics of all chunkserver processes so far.
func (m *Metrics) Servers() []*chunkserver.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.servers)
}

// Peers are the metrics of the clients by which chunkservers repair and move.
func (m *Metrics) Peers() []*client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.peers)
}

// Clients are the metrics of the clients of tests.
func (m *Metrics) Clients() []*client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.clients)
}

func (m *Metrics) server() *chunkserver.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servers = append(m.servers, chunkserver.NewMetrics(nil))
	return m.servers[len(m.servers)-1]
}

func (m *Metrics) peer() *client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = append(m.peers, client.NewMetrics(nil))
	return m.peers[len(m.peers)-1]
}

func (m *Metrics) client() *client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients = append(m.clients, client.NewMetrics(nil))
	return m.clients[len(m.clients)-1]
}
