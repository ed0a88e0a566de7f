package memcluster

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// Servers returns the names of the metadata servers.
func Servers() []string { return []string{"m1", "m2", "m3"} }

// Endpoints returns the endpoints of each metadata server.
func Endpoints() (all [][]string) {
	for _, id := range Servers() {
		all = append(all, []string{memnet.Address(id)})
	}
	return all
}

func (c *Cluster) startMetadata(opts Options) {
	var peers []metadata.Peer
	for _, id := range Servers() {
		peers = append(peers, metadata.Peer{ID: id, Addresses: []string{memnet.Address(id)}})
	}
	for _, p := range peers {
		s, err := metadata.New(metadata.Config{Node: p.ID, Peers: peers, Cluster: ClusterID,
			SessionTimeout: opts.SessionTimeout, RepairGrace: opts.RepairGrace, RewriteEvery: opts.RewriteEvery,
			PackAfter: opts.PackAfter, BackupHorizon: opts.BackupHorizon},
			metadata.Deps{NewStore: c.group.Store(p.ID), Log: c.Log})
		require.NoError(c.t, err)
		ms := &metaServer{Server: s}
		c.servers[p.ID] = ms
		_, err = c.Net.Listen(p.ID, memnet.Options{Role: transport.RoleMetadata, Cluster: ClusterID,
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

// Leads reports whether a metadata server serves as the leader.
func (c *Cluster) Leads(id string) bool { return c.servers[id].Status().Leading }

// Ask sends a request to the leader in the name of a peer of that role, outside of
// any session.
func (c *Cluster) Ask(role transport.Role, node string, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	d := c.Net.Dialer(Peer(role, node))
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
