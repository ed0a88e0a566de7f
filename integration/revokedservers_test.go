package integration_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// minioClient calls an S3 endpoint with its root key.
func minioClient(t *testing.T, n *devcluster.Node) *minio.Client {
	t.Helper()
	c, err := minio.New(n.Address, &minio.Options{Creds: credentials.NewFileAWSCredentials(n.CredentialsFile(), "default"), Region: "us-east-1"})
	require.NoError(t, err)
	return c
}

// TestClientsHeedRevokedServers: after the certificate of a chunkserver is revoked,
// a running client and S3 endpoint no longer use that server, and continue with the
// others. An endpoint whose own certificate is revoked serves nothing more, not
// even from its caches.
func TestClientsHeedRevokedServers(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, S3: true})
	env := settingsFor(c)
	works(t, env, "cluster", "status", "--wait", "1m")
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "client"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	defer pool.Close()
	cl, err := client.Dial(t.Context(), client.Config{Metadata: [][]string{{c.Node("m1").Address}}}, client.Deps{Dialer: pool})
	require.NoError(t, err)
	defer cl.Close()

	endpoint := c.Node(devcluster.S3Name)
	mc := minioClient(t, endpoint)
	require.NoError(t, mc.MakeBucket(t.Context(), "bucket", minio.MakeBucketOptions{}))
	_, err = mc.PutObject(t.Context(), "bucket", "key", strings.NewReader("bytes"), 5, minio.PutObjectOptions{})
	require.NoError(t, err)
	get := func() error {
		o, err := mc.GetObject(t.Context(), "bucket", "key", minio.GetObjectOptions{})
		if err == nil {
			_, err = io.ReadAll(o)
			err = errors.Join(err, o.Close())
		}
		return err
	}
	require.NoError(t, get())

	// A chunkserver refuses a client's Stat itself: this shows that the client
	// reached it.
	stat := func(node string) error {
		_, err := pool.Chunks(node, []string{c.Node(node).Address}).Stat(t.Context(), &wire.StatDevices{})
		if err != nil && strings.Contains(err.Error(), "only an administrator or a server may inspect devices") {
			return nil
		}
		return err
	}
	for _, n := range []string{"n1", "n3"} {
		require.NoError(t, stat(n))
	}
	works(t, env, "cert", "revoke", "--node", "n3", "--role", "chunkserver")
	require.Eventually(t, func() bool {
		err := stat("n3")
		return err != nil && strings.Contains(err.Error(), "the certificate of chunkserver n3 was revoked")
	}, time.Minute, 100*time.Millisecond, "the client does not call it")
	require.NoError(t, stat("n1"))
	// A new client gets the list with its first answer.
	newPool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	defer newPool.Close()
	beginner, err := client.Dial(t.Context(), client.Config{Metadata: [][]string{{c.Node("m1").Address}}}, client.Deps{Dialer: newPool})
	require.NoError(t, err)
	defer beginner.Close()
	_, err = newPool.Chunks("n3", []string{c.Node("n3").Address}).Stat(t.Context(), &wire.StatDevices{})
	require.ErrorContains(t, err, "the certificate of chunkserver n3 was revoked")
	require.Eventually(t, func() bool {
		return strings.Contains(endpoint.LogTail(1000), "the list of servers with revoked certificates changed")
	}, time.Minute, 100*time.Millisecond, "the endpoint has the list")
	require.NoError(t, get(), "from the other servers")
	works(t, env, "cert", "revoke", "--undo", "--node", "n3", "--role", "chunkserver")
	require.Eventually(t, func() bool { return stat("n3") == nil }, time.Minute, 100*time.Millisecond)

	works(t, env, "cert", "revoke", "--node", devcluster.S3Name)
	gone := func(err error) bool {
		code := minio.ToErrorResponse(err).Code
		require.NotEqual(t, "NoSuchKey", code)
		return err != nil
	}
	require.Eventually(t, func() bool {
		_, err := mc.StatObject(t.Context(), "bucket", "key", minio.StatObjectOptions{})
		return gone(err)
	}, time.Minute, 100*time.Millisecond, "what it remembers of names")
	require.True(t, gone(get()))
	_, err = mc.ListBuckets(t.Context())
	require.True(t, gone(err))
	require.False(t, endpoint.Healthy(t.Context()), "and it says so")
}
