package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// A session ends when its directory is no longer at its certificate's scope. Otherwise it would
// continue in a directory that the certificate does not name.
func TestASessionEndsWithItsPlace(t *testing.T) {
	bubble(t, nil, func(c *cluster) {
		admin := c.open(peer(transport.RoleClient, "w"))
		team := admin.made(mkdir(root, "team")).Inode
		a := admin.made(mkdir(team, "a")).Inode
		admin.made(create(a, "f"))
		vault := admin.made(mkdir(root, "vault")).Inode
		confined := func(node, scope, root string) *client {
			p := peer(transport.RoleClient, node)
			p.Scope = scope
			c.nonces++
			resp, err := c.do(p, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
				Nonce: append(make([]byte, 15), c.nonces), Scope: root}}})
			require.NoError(t, err)
			return &client{c: c, peer: p, session: resp.GetSession().Session, reply: resp.GetSession()}
		}
		rename := func(parent uint64, name string, newParent uint64, newName string) {
			_, err := admin.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{
				Parent: parent, Name: name, NewParent: newParent, NewName: newName}}})
			require.NoError(t, err)
		}
		see := func(k *client) error {
			_, err := k.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: "f"}}})
			if err == nil {
				err = k.renew()
			}
			return err
		}
		inA, inTeam, narrow := confined("c1", "/team/a", ""), confined("c2", "/team", ""), confined("c3", "/team", "/team/a")
		all := confined("c4", "/", "/team/a")
		rename(team, "a", team, "b")
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, see(inA), moraine.SessionExpired, "its directory has another name")
		require.NoError(t, see(inTeam))
		require.NoError(t, see(narrow), "it is still in the scope of its certificate")
		require.NoError(t, see(all))

		// A leader without a request from the session checks at its first one.
		rename(team, "b", team, "a")
		inA = confined("c1", "/team/a", "")
		c.elect("m2")
		time.Sleep(2 * time.Second)
		rename(root, "team", vault, "team")
		time.Sleep(3 * time.Second)
		for what, k := range map[string]*client{"the directory": inA, "one above": inTeam, "a narrower one": narrow} {
			_ = see(k)
			time.Sleep(3 * time.Second)
			require.ErrorIs(t, see(k), moraine.SessionExpired, what)
		}
		require.NoError(t, see(all))
	})
}
