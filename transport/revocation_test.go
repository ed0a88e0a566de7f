package transport_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// TestARevokedNodeIsRevokedInEveryRole: an entry of a node without a role covers the certificates
// of that name of every role, one with a role those of that role only. Neither covers another
// name, or a certificate that was issued later.
func TestARevokedNodeIsRevokedInEveryRole(t *testing.T) {
	now := time.Now()
	roles := []transport.Role{transport.RoleMetadata, transport.RoleChunkserver, transport.RoleGateway, transport.RoleClient, transport.RoleAdmin}
	for _, only := range append(roles, "") {
		list := transport.NewRevocations([]*wire.Revocation{{Node: "n3", Role: string(only), IssuedUntil: now.Unix()}})
		for i, role := range roles {
			p := &transport.Peer{Role: role, Node: "n3", Key: pki.KeyID{byte(i + 1)}, Issued: now.Add(-time.Hour)}
			require.Equal(t, only == "" || only == role, list.Has(p), "entry of %q, certificate of %s", only, role)
			p.Issued = now.Add(time.Hour)
			require.False(t, list.Has(p), "it was issued later")
			p.Issued, p.Node = now.Add(-time.Hour), "n33"
			require.False(t, list.Has(p), "it has another name")
		}
		require.Equal(t, only == "" || only == transport.RoleChunkserver, list.HasHost("n3"))
		servers := len(list.Servers().List())
		require.Equal(t, only == "" || only.Server(), servers == 1, "clients must know of %q", only)
	}
}
