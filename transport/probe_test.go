package transport_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// A probe finds what a caller without a connection finds: a server under another
// name, a missing one, one that refuses the caller, or one with an expired
// certificate, while older connections continue.
func TestProbeFindsWhetherAServerCanBeCalled(t *testing.T) {
	for _, n := range modes() {
		t.Run(n.String(), func(t *testing.T) {
			a := newAuthority(t)
			sh := newShelf()
			var refuses atomic.Bool
			id := n.identity(t, a, transport.RoleChunkserver, "n1")
			s, stop := startServer(t, transport.ServerConfig{Addresses: []string{n.address(t)}, Mode: n.mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"},
				transport.ServerDeps{Handler: transport.HandlerForChunks(sh), Identity: id, Keys: a.keys, Revoked: func(*transport.Peer) bool { return refuses.Load() }})
			addr := s.Addresses()[0]
			p := n.pool(t, a, transport.RoleChunkserver, "n2")
			ctx := testContext(t)
			for range 3 {
				require.NoError(t, p.Probe(ctx, transport.RoleChunkserver, "n1", addr))
			}
			_, err := p.Chunks("n1", s.Addresses()).Stat(ctx, &wire.StatDevices{})
			require.NoError(t, err)
			require.Error(t, p.Probe(ctx, transport.RoleChunkserver, "n3", addr), "it is another")
			require.Error(t, p.Probe(ctx, transport.RoleMetadata, "n1", addr), "of another role")
			refuses.Store(true)
			require.ErrorIs(t, p.Probe(ctx, transport.RoleChunkserver, "n1", addr), moraine.Unauthenticated)
			refuses.Store(false)
			require.NoError(t, p.Probe(ctx, transport.RoleChunkserver, "n1", addr))
			stop()
			require.ErrorIs(t, p.Probe(ctx, transport.RoleChunkserver, "n1", addr), moraine.Unavailable)
		})
	}
	t.Run("an expired certificate", func(t *testing.T) {
		a := newAuthority(t)
		issue := func(node string, ttl time.Duration) *pki.Identity {
			return a.issue(t, pki.Request{Role: transport.RoleChunkserver, Node: node, Now: time.Now(), TTL: ttl})
		}
		s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: transport.Secure, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"},
			transport.ServerDeps{Handler: transport.HandlerForChunks(newShelf()), Identity: issue("n1", time.Hour), Keys: a.keys})
		cal := &calendar{}
		p, err := transport.NewPool(transport.PoolConfig{Mode: transport.Secure, Cluster: cluster}, transport.PoolDeps{Identity: issue("n2", 20*time.Hour), Clock: cal})
		require.NoError(t, err)
		defer p.Close()
		require.NoError(t, p.Probe(t.Context(), transport.RoleChunkserver, "n1", s.Addresses()[0]))
		cal.ahead.Store(int64(2 * time.Hour))
		err = p.Probe(t.Context(), transport.RoleChunkserver, "n1", s.Addresses()[0])
		require.ErrorIs(t, err, moraine.Unauthenticated)
		require.ErrorContains(t, err, "expired")
	})
}
