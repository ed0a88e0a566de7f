package integration_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
)

// TestRevokedCertificates revokes, by commands, the certificate of a connected
// client and that of a chunkserver. The client is refused, by the next leader too.
// The chunkserver is shown as revoked. Both return once they are removed from the
// list.
func TestRevokedCertificates(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 3, Chunkservers: 3})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "client"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	defer pool.Close()
	cfg := client.Config{CacheEntries: -1}
	for _, n := range c.Nodes(devcluster.Metadata) {
		cfg.Metadata = append(cfg.Metadata, []string{n.Address})
	}
	cl, err := client.Dial(t.Context(), cfg, client.Deps{Dialer: pool})
	require.NoError(t, err)
	defer cl.Close()
	_, err = cl.Mkdir(t.Context(), "/mine", 0o755)
	require.NoError(t, err)

	file := filepath.Join(c.Certs(), "client.crt")
	works(t, env, "cert", "revoke", "--file", file)
	refused := func() bool {
		_, err := cl.Stat(t.Context(), "/mine")
		return moraine.KindOf(err) == moraine.Unauthenticated
	}
	require.Eventually(t, refused, time.Minute, 50*time.Millisecond, "the client's certificate was revoked")
	asClient := append(slices.Clone(env), "MORAINE_IDENTITY=client")
	requireRefused(t, invoke(t, asClient, "ls", "moraine:///"), 1, "revoked")

	for _, m := range objects(t, works(t, env, "metadata", "ls", "--json")) {
		if m["role"] == "leader" {
			require.NoError(t, c.Node(m["id"].(string)).Kill())
		}
	}
	works(t, env, "ls", "moraine:///")
	require.Eventually(t, refused, time.Minute, 50*time.Millisecond, "the next leader holds to it")

	works(t, env, "cert", "revoke", "--node", "n3", "--role", "chunkserver")
	stateOf := func(host string) any {
		for _, h := range objects(t, works(t, env, "host", "ls", "--json")) {
			if h["id"] == host {
				return h["state"]
			}
		}
		return nil
	}
	require.Eventually(t, func() bool { return stateOf("n3") == "certificate revoked" }, time.Minute, 100*time.Millisecond)
	require.Equal(t, "in", stateOf("n2"))
	listed := objects(t, works(t, env, "cert", "revoke", "--list", "--json"))
	require.Len(t, listed, 2)
	require.Equal(t, "client", listed[0]["node"])

	works(t, env, "cert", "revoke", "--undo", "--file", file)
	works(t, env, "cert", "revoke", "--undo", "--node", "n3", "--role", "chunkserver")
	require.Eventually(t, func() bool {
		_, err := cl.Stat(t.Context(), "/mine")
		return err == nil
	}, time.Minute, 50*time.Millisecond, "the client is back, under a new session")
	require.Eventually(t, func() bool { return stateOf("n3") == "in" }, time.Minute, 100*time.Millisecond)
}
