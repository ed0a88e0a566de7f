package transport_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
)

// TestPrincipal: every claim and the key change the principal. The address, the
// token and other properties of a single connection do not.
func TestPrincipal(t *testing.T) {
	base := transport.Peer{Cluster: cluster, Role: transport.RoleClient, Node: "c1", Scope: "/"}
	seen := map[string]string{}
	for what, change := range map[string]func(*transport.Peer){
		"itself":             func(*transport.Peer) {},
		"key":                func(p *transport.Peer) { p.Key[31] = 1 },
		"role":               func(p *transport.Peer) { p.Role = transport.RoleGateway },
		"node":               func(p *transport.Peer) { p.Node = "c2" },
		"scope":              func(p *transport.Peer) { p.Scope = "/a" },
		"read-only":          func(p *transport.Peer) { p.ReadOnly = true },
		"squash":             func(p *transport.Peer) { p.Squash = true },
		"node and scope":     func(p *transport.Peer) { p.Node, p.Scope = "c1/", "" },
		"read-only, squash":  func(p *transport.Peer) { p.ReadOnly, p.Squash = true, true },
		"a role in its node": func(p *transport.Peer) { p.Role, p.Node = "clientc", "1" },
	} {
		p := base
		change(&p)
		require.Len(t, p.Principal(), 16)
		require.Empty(t, seen[string(p.Principal())], what)
		seen[string(p.Principal())] = what
	}
	p := base
	p.Addr = "elsewhere:1"
	require.Equal(t, base.Principal(), p.Principal())
}
