package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// keyed is a peer with a certificate.
func keyed(role transport.Role, node string, key byte) *transport.Peer {
	p := peer(role, node)
	p.Key, p.Serial, p.Issued = pki.KeyID{key}, string('a'+rune(key)), time.Now().Add(-time.Hour)
	return p
}

// TestRevokedCertificates: every server refuses a revoked certificate's requests, its sessions end
// at once, the next leader enforces it, chunkservers receive it, and a host with one is shown so.
// Other certificates of the same node continue.
func TestRevokedCertificates(t *testing.T) {
	for what, w := range map[string]*wire.Revocation{
		"key":             {Key: append([]byte{1}, make([]byte, 31)...)},
		"serial":          {Serial: "b"},
		"node":            {Node: "c1"},
		"node of a role":  {Node: "c1", Role: "client"},
		"another's":       {Node: "c1", Role: "gateway"},
		"issued too late": {Node: "c1", IssuedUntil: 1},
	} {
		refused := what != "another's" && what != "issued too late"
		bubble(t, nil, func(c *cluster) {
			admin, server := keyed(transport.RoleAdmin, "ops", 9), keyed(transport.RoleChunkserver, "n1", 8)
			revoke := func(undo bool, w *wire.Revocation) error {
				_, err := c.do(admin, &wire.MetaRequest{Op: &wire.MetaRequest_RevokeCert{RevokeCert: &wire.RevokeCert{Undo: undo, Revocations: []*wire.Revocation{w}}}})
				return err
			}
			k := c.open(keyed(transport.RoleClient, "c1", 1))
			other := c.open(keyed(transport.RoleClient, "c9", 2))
			require.NoError(t, k.renew())
			require.NoError(t, other.renew())
			require.NoError(t, revoke(false, w), what)
			time.Sleep(5 * time.Second)
			for _, leader := range []string{"m1", "m2"} {
				if c.group.Leader() != leader {
					c.elect(leader)
					time.Sleep(2 * time.Second)
				}
				for name, s := range c.servers {
					require.Equal(t, refused, s.Revoked(k.peer), "%s: %s", what, name)
					require.False(t, s.Revoked(other.peer))
				}
				if !refused {
					require.NoError(t, k.renew())
					continue
				}
				require.ErrorIs(t, k.renew(), moraine.Unauthenticated, what)
				_, err := c.do(k.peer, lookup("a"))
				require.ErrorIs(t, err, moraine.Unauthenticated)
				require.NoError(t, other.renew())
			}
			beat := &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: &wire.Heartbeat{}}}
			resp, err := c.do(server, beat)
			require.NoError(t, err)
			require.Len(t, resp.GetHeartbeat().Revoked, 1)
			beat.GetHeartbeat().RevokedVersion = resp.GetHeartbeat().RevokedVersion
			resp, err = c.do(server, beat)
			require.NoError(t, err)
			require.Empty(t, resp.GetHeartbeat().Revoked, "it has the list")

			session := func(has uint64) *wire.SessionReply {
				resp, err := other.do(&wire.MetaRequest{Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{RevokedVersion: has}}})
				require.NoError(t, err)
				return resp.GetSession()
			}
			told := session(0)
			servers := 1
			if w.Role != "" {
				servers = 0
			}
			require.Len(t, told.Revoked, servers, "%s: a client is told of those that servers may have", what)
			require.Empty(t, session(told.RevokedVersion).Revoked, "it has the list")
			require.Len(t, session(told.RevokedVersion+1).Revoked, servers)

			require.NoError(t, revoke(true, w))
			if refused {
				require.ErrorIs(t, k.renew(), moraine.SessionExpired, "%s: its session has ended", what)
			}
			require.NotNil(t, c.open(keyed(transport.RoleClient, "c1", 1)))
		})
	}
}

// TestARevokedHostIsShown: a chunkserver with a revoked certificate is silent and shown so.
// Administrators cannot lock themselves out, and only administrators may revoke.
func TestARevokedHostIsShown(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		c.fleet(3)
		admin := keyed(transport.RoleAdmin, "ops", 9)
		ask := func(p *transport.Peer, w *wire.Revocation) error {
			_, err := c.do(p, &wire.MetaRequest{Op: &wire.MetaRequest_RevokeCert{RevokeCert: &wire.RevokeCert{Revocations: []*wire.Revocation{w}}}})
			return err
		}
		require.ErrorIs(t, ask(admin, &wire.Revocation{Key: admin.Key[:]}), moraine.InvalidArgument)
		require.ErrorIs(t, ask(admin, &wire.Revocation{Node: "ops"}), moraine.InvalidArgument)
		for _, role := range []transport.Role{transport.RoleClient, transport.RoleGateway, transport.RoleChunkserver, transport.RoleMetadata} {
			require.ErrorIs(t, ask(keyed(role, "x", 3), &wire.Revocation{Node: "ops"}), moraine.PermissionDenied)
		}
		hosts := c.cluster().Topology.Hosts
		require.NoError(t, ask(admin, &wire.Revocation{Node: hosts[0].Id, Role: "chunkserver"}))
		require.False(t, c.cluster().Topology.Hosts[0].CertRevoked, "it is heard of yet")
		time.Sleep(10 * time.Second)
		for _, h := range c.cluster().Topology.Hosts {
			require.False(t, h.Alive)
			require.Equal(t, h.Id == hosts[0].Id, h.CertRevoked, h.Id)
		}
	})
}
