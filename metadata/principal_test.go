package metadata_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestASessionIsItsCertificates opens a session and uses its number under every certificate that
// differs in one field. Each is answered as if the session had ended, and none gets its token.
func TestASessionIsItsCertificates(t *testing.T) {
	for _, holder := range []transport.Role{transport.RoleClient, transport.RoleChunkserver, transport.RoleAdmin} {
		bubble(t, nil, func(c *cluster) {
			admin := c.open(peer(transport.RoleAdmin, "a1"))
			_, err := admin.do(mkdir(root, "team"))
			require.NoError(t, err)
			others := map[string]func(*transport.Peer){
				"another node": func(p *transport.Peer) { p.Node = "other" },
				"a client":     func(p *transport.Peer) { p.Role = transport.RoleClient },
				"a gateway":    func(p *transport.Peer) { p.Role = transport.RoleGateway },
				"an admin":     func(p *transport.Peer) { p.Role = transport.RoleAdmin },
				"a scope":      func(p *transport.Peer) { p.Scope = "/team" },
				"read-only":    func(p *transport.Peer) { p.ReadOnly = true },
				"squashed":     func(p *transport.Peer) { p.Squash = true },
				"another key":  func(p *transport.Peer) { p.Key[0]++ },
			}
			for what, change := range others {
				k := c.open(peer(holder, "n1"))
				other := *k.peer
				change(&other)
				if bytes.Equal(other.Principal(), k.peer.Principal()) {
					continue
				}
				for _, leader := range []string{"m1", "m2"} { // the second leader knows the session only from the state
					if c.group.Leader() != leader {
						c.elect(leader)
					}
					for name, req := range map[string]*wire.MetaRequest{
						"renew": {Session: k.session, Op: &wire.MetaRequest_RenewSession{RenewSession: &wire.RenewSession{WantToken: true}}},
						"read":  {Session: k.session, Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: root}}},
						"ask":   {Session: k.session, Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}},
						"write": {Session: k.session, Number: 9, Op: &wire.MetaRequest_Release{Release: &wire.Release{}}},
						"close": {Session: k.session, Number: 9, Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}},
					} {
						resp, err := c.do(&other, req)
						if other.ReadOnly && name == "write" {
							continue // refused before its session is looked at
						}
						require.ErrorIs(t, err, moraine.SessionExpired, "%s of a %s as %s: %s", k.peer.Node, holder, what, name)
						require.Nil(t, resp)
					}
				}
				c.elect("m1")
				require.NoError(t, k.renew(), "its holder goes on")
			}
		})
	}
}

// TestSessionNumbersAreRandom: a client that knows its own session number cannot guess another.
func TestSessionNumbersAreRandom(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		small := 0
		for range 64 {
			id := moraine.ID(c.open(peer(transport.RoleClient, "c1")).session)
			require.Equal(t, moraine.Incarnation(1), id.Incarnation())
			if id.Counter() < 1<<32 {
				small++
			}
		}
		require.Less(t, small, 8, "numbers below 2^32, of 64 that are drawn from 2^40")
	})
}
