package integration_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// bucketOf opens the local bucket of a cluster of processes, as any S3 client
// would.
func bucketOf(t *testing.T, c *devcluster.Cluster) (*object.Bucket, *devcluster.Node) {
	t.Helper()
	nodes := c.Nodes(devcluster.ObjectServer)
	require.Len(t, nodes, 1)
	keys, err := object.LoadKeys(nodes[0].KeysFile())
	require.NoError(t, err)
	b, err := object.New(object.Config{Bucket: "moraine", Endpoint: "http://" + nodes[0].Address, AccessKey: keys.Access, SecretKey: keys.Secret}, object.Deps{})
	require.NoError(t, err)
	return b, nodes[0]
}

// TestLocalBucketKeepsItsObjects stops the object server gracefully, and kills it.
// Acknowledged objects are there each time, at the same address with the same keys.
func TestLocalBucketKeepsItsObjects(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	b, node := bucketOf(t, c)
	ctx := t.Context()
	data := []byte(strings.Repeat("bytes of an object ", 1000))
	for i, end := range []func() error{
		func() error { return node.Stop(20 * time.Second) },
		node.Kill,
	} {
		key := string(rune('a'+i)) + "/file"
		id, err := b.NewUpload(ctx, key, map[string]string{"file-owner": "7"})
		require.NoError(t, err)
		part, err := b.PutPart(ctx, key, id, 1, data, crc.Sum(data))
		require.NoError(t, err)
		done, err := b.Complete(ctx, key, id, []object.Part{part}, crc.Sum(data), true, object.Condition{})
		require.NoError(t, err)
		require.NoError(t, end())
		require.ErrorIs(t, b.Probe(ctx), moraine.Unavailable)
		require.NoError(t, node.Start())
		ready, cancel := context.WithTimeout(ctx, time.Minute)
		require.NoError(t, node.Ready(ready))
		cancel()
		again, _ := bucketOf(t, c)
		info, err := again.Head(ctx, done.Ref)
		require.NoError(t, err)
		require.Equal(t, int64(len(data)), info.Size)
		require.Equal(t, "7", info.Meta["file-owner"])
		require.True(t, info.HasCRC)
		require.Equal(t, crc.Sum(data), info.CRC)
		got := make([]byte, len(data))
		require.NoError(t, again.Get(ctx, done.Ref, 0, got))
		require.Equal(t, data, got)
	}
}

// TestClusterWorksWithoutItsBucket: a bucket that does not answer affects only the
// object tier.
func TestClusterWorksWithoutItsBucket(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1, ObjectServer: true})
	_, node := bucketOf(t, c)
	require.NoError(t, node.Kill())
	host := c.Nodes(devcluster.Chunkserver)[0]
	require.NoError(t, host.Stop(20*time.Second))
	require.NoError(t, host.Start())
	require.NoError(t, host.Ready(t.Context()))
	cl := connect(t, c, client.Config{})
	f, err := cl.Create(t.Context(), "/file", client.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Write([]byte("some bytes"))
	require.NoError(t, err)
	_, err = f.Commit(t.Context())
	require.NoError(t, err)

	// A command that waits for a flush shows the cause of the delay, and continues
	// when the bucket is back.
	var said bytes.Buffer
	flush := command(t, settingsFor(c), "flush", "--wait", "moraine:///")
	stderr, err := flush.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, flush.Start())
	_, err = io.CopyN(&said, stderr, 1)
	require.NoError(t, err)
	require.NoError(t, node.Start())
	_, err = io.Copy(&said, stderr)
	require.NoError(t, err)
	require.NoError(t, flush.Wait(), said.String())
	require.Contains(t, said.String(), "is tried again: ")
	require.Contains(t, said.String(), "connection refused")
}
