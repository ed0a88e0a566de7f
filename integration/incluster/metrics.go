package incluster

import (
	"slices"
	"sync"

	"github.com/morainefs/moraine/chunkserver"
	"github.com/morainefs/moraine/client"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of all processes that the cluster has had, including
// ended ones. It is safe for concurrent use.
type Metrics struct {
	mu      sync.Mutex // guards the fields below
	servers []*chunkserver.Metrics
	peers   []*prometheus.Registry
	clients []*prometheus.Registry
}

// Servers are the metrics of all chunkserver processes so far.
func (m *Metrics) Servers() []*chunkserver.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.servers)
}

// Peers have the metrics of the clients by which chunkservers repair and move.
func (m *Metrics) Peers() []*prometheus.Registry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.peers)
}

// Clients have the metrics of the clients of tests.
func (m *Metrics) Clients() []*prometheus.Registry {
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
	reg := prometheus.NewRegistry()
	m.peers = append(m.peers, reg)
	return client.NewMetrics(reg)
}

func (m *Metrics) client() *client.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	reg := prometheus.NewRegistry()
	m.clients = append(m.clients, reg)
	return client.NewMetrics(reg)
}
