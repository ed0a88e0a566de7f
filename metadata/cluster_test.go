package metadata_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/metadatatest"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// cluster is several metadata servers with one group, in a synctest bubble.
type cluster struct {
	t       *testing.T
	group   *metadatatest.Group
	servers map[string]*metadata.Server
	nonces  byte
}

// bubble runs fn with a cluster of three servers, the first of which leads.
func bubble(t *testing.T, change func(*metadata.Config), fn func(c *cluster)) {
	t.Helper()
	bubbleWith(t, func(cfg *metadata.Config, _ *metadata.Deps) {
		if change != nil {
			change(cfg)
		}
	}, fn)
}

// bubbleWith is bubble with replaceable dependencies of the servers.
func bubbleWith(t *testing.T, change func(*metadata.Config, *metadata.Deps), fn func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		c := &cluster{t: t, group: metadatatest.NewGroup(), servers: make(map[string]*metadata.Server)}
		var wg sync.WaitGroup
		defer func() {
			cancel()
			wg.Wait()
		}()
		var peers []metadata.Peer
		for i := range 3 {
			id := fmt.Sprintf("m%d", i+1)
			peers = append(peers, metadata.Peer{ID: id, Addresses: []string{id + ":7000"}, AdminAddress: id + ":7001"})
		}
		for _, p := range peers {
			cfg := metadata.Config{Node: p.ID, Peers: peers, Cluster: clusterUUID}
			deps := metadata.Deps{NewStore: c.group.Store(p.ID), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
			change(&cfg, &deps)
			s, err := metadata.New(cfg, deps)
			require.NoError(t, err)
			c.servers[p.ID] = s
			wg.Go(func() {
				if err := s.Run(ctx); err != nil {
					t.Errorf("run %s: %v", p.ID, err)
				}
			})
		}
		c.elect("m1")
		fn(c)
	})
}

var clusterUUID = moraine.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// elect makes id the leader and waits until it serves.
func (c *cluster) elect(id string) {
	c.t.Helper()
	c.group.Elect(id)
	synctest.Wait()
	if id != "" {
		require.True(c.t, c.servers[id].Status().Leading, "%s must lead", id)
	}
}

func (c *cluster) leader() *metadata.Server {
	return c.servers[c.group.Leader()]
}

// do sends a request to the leader as peer, under the first routing epoch unless it names another.
func (c *cluster) do(peer *transport.Peer, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	routed(req)
	return c.leader().Do(transport.WithPeer(ctx, peer), req)
}

// routed gives a session's request the first routing epoch unless it names another.
func routed(req *wire.MetaRequest) {
	if req.Session != 0 && req.RoutingEpoch == 0 {
		req.RoutingEpoch = 1
	}
}

// client is a session and its request numbers.
type client struct {
	c       *cluster
	peer    *transport.Peer
	session uint64
	number  uint64
	reply   *wire.SessionReply
}

// open opens a session as peer.
func (c *cluster) open(peer *transport.Peer) *client {
	c.t.Helper()
	c.nonces++
	resp, err := c.do(peer, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
		Nonce: append(make([]byte, 15), c.nonces)}}})
	require.NoError(c.t, err)
	return &client{c: c, peer: peer, session: resp.GetSession().Session, reply: resp.GetSession()}
}

// do sends a mutation under the next number.
func (k *client) do(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	k.number++
	req.Session, req.Number, req.AckedBelow = k.session, k.number, k.number
	return k.c.do(k.peer, req)
}

func (k *client) ask(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	req.Session = k.session
	return k.c.do(k.peer, req)
}

func (k *client) renew() error {
	_, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{}}})
	return err
}

func peer(role transport.Role, node string) *transport.Peer {
	return &transport.Peer{Cluster: clusterUUID, Role: role, Node: node, Scope: "/"}
}

func mkdir(parent uint64, name string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755, Exclusive: true}}}
}

func lookup(name string) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: root, Name: name}}}
}

const root = uint64(moraine.RootInode)
