package transport_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// TestCallersLeaveRevokedServers: a pool that gets a list of revoked certificates
// ends the connections to servers on it, of every class and with running calls. It
// makes no new ones until the list no longer has them. Another server with another
// key is served.
func TestCallersLeaveRevokedServers(t *testing.T) {
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		t.Run(string(mode), func(t *testing.T) {
			a, n := newAuthority(t), network{mode: mode}
			held := make(chan struct{}, 1)
			sh := newShelf()
			sh.before = holdAt(held)
			free := newShelf()
			serve := func(role transport.Role, node string, h transport.Handler) *transport.Server {
				s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: n.mode, Cluster: cluster, Role: role, Node: node},
					transport.ServerDeps{Handler: h, Identity: a.identity(t, role, node), Keys: a.keys})
				return s
			}
			m := serve(transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
			s := serve(transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
			other := serve(transport.RoleChunkserver, "n2", transport.HandlerForChunks(free))
			p := n.pool(t, a, transport.RoleClient, "c1")
			p.SetToken(a.token(t, "c1", time.Hour))
			ctx := testContext(t)
			meta, chunks := p.Metadata(m.Addresses()), p.Chunks("n1", s.Addresses())
			_, err := meta.Do(ctx, &wire.MetaRequest{})
			require.NoError(t, err)
			_, err = put(ctx, p.Chunks("n2", other.Addresses()), 1, []byte("x"))
			require.NoError(t, err)
			result := make(chan error, 1)
			go func() {
				_, err := put(ctx, chunks, 1, []byte("x"))
				result <- err
			}()
			<-held
			log := n.pool(t, a, transport.RoleMetadata, "m2")
			nc, err := log.DialRaft(m.Addresses()[0], 0)
			require.NoError(t, err)
			got, err := m.RaftListener().Accept()
			require.NoError(t, err)
			t.Cleanup(func() { got.Close() })

			list := transport.NewRevocations([]*wire.Revocation{
				{Node: "m1", IssuedUntil: time.Now().Unix() + 1}, {Node: "n1", Role: "chunkserver", IssuedUntil: time.Now().Unix() + 1},
				{Node: "n2", Role: "client", IssuedUntil: time.Now().Unix() + 1}})
			p.SetRevoked(list)
			log.SetRevoked(list)
			select {
			case err := <-result:
				require.ErrorIs(t, err, moraine.Unavailable)
				require.ErrorContains(t, err, "was revoked")
			case <-time.After(30 * time.Second):
				t.Fatal("the call at a revoked chunkserver is still under way")
			}
			_, err = nc.Read(make([]byte, 1))
			require.Error(t, err, "the stream of the log has ended")
			_, err = log.DialRaft(m.Addresses()[0], 0)
			require.ErrorContains(t, err, "was revoked")
			for range 2 {
				_, err = meta.Do(ctx, &wire.MetaRequest{})
				require.ErrorIs(t, err, moraine.Unavailable, "callers go to another server")
				require.ErrorContains(t, err, "the certificate of metadata m1 was revoked")
				_, err = put(ctx, chunks, 2, []byte("x"))
				require.ErrorContains(t, err, "the certificate of chunkserver n1 was revoked")
			}
			_, err = put(ctx, p.Chunks("n2", other.Addresses()), 2, []byte("x"))
			require.NoError(t, err)

			p.SetRevoked(transport.NewRevocations(nil))
			require.Eventually(t, func() bool {
				_, err = meta.Do(ctx, &wire.MetaRequest{})
				return err == nil
			}, 30*time.Second, 20*time.Millisecond)
			sh.before = nil
			require.Eventually(t, func() bool {
				_, err = put(ctx, chunks, 3, []byte("x"))
				return err == nil
			}, 30*time.Second, 20*time.Millisecond)
		})
	}
}

// TestARevokedServerIsBackWithAnotherKey: callers in mode crc, which remember a key
// agreed with a server, return to it after its certificate was replaced.
func TestARevokedServerIsBackWithAnotherKey(t *testing.T) {
	a := newAuthority(t)
	for _, mode := range []transport.Mode{transport.Secure, transport.CRC} {
		dir := t.TempDir()
		issue := func() *pki.Identity {
			c, err := a.ca.Issue(pki.Request{Role: transport.RoleChunkserver, Node: "n1", Now: time.Now()})
			require.NoError(t, err)
			require.NoError(t, c.Save(dir, "n1"))
			id, err := pki.LoadIdentity(pki.FilesIn(dir, "n1"))
			require.NoError(t, err)
			return id
		}
		id := issue()
		cert, _, _ := id.Current()
		key := pki.KeyOf(cert.Leaf)
		s, _ := startServer(t, transport.ServerConfig{Addresses: []string{"127.0.0.1:0"}, Mode: mode, Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"},
			transport.ServerDeps{Handler: transport.HandlerForChunks(newShelf()), Identity: id, Keys: a.keys})
		p := network{mode: mode}.pool(t, a, transport.RoleClient, "c1")
		p.SetToken(a.token(t, "c1", time.Hour))
		ctx := testContext(t)
		_, err := put(ctx, p.Chunks("n1", s.Addresses()), 1, []byte("x"))
		require.NoError(t, err)
		p.SetRevoked(transport.NewRevocations([]*wire.Revocation{{Key: key[:]}}))
		_, err = put(ctx, p.Chunks("n1", s.Addresses()), 2, []byte("x"))
		require.ErrorContains(t, err, "was revoked")
		issue()
		require.Eventually(t, func() bool {
			_, err = put(ctx, p.Chunks("n1", s.Addresses()), 3, []byte("x"))
			return err == nil
		}, 30*time.Second, 20*time.Millisecond, "%v", err)
	}
}
