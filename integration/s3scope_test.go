package integration_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport/pki"
)

// TestAnS3EndpointStaysInItsDirectory: an endpoint that serves a directory follows
// no link out of it, even if its certificate covers more. Otherwise a user with
// write access to a bucket through a mount, but none beside it, could make such a
// link. It follows links within the directory. Endpoints that are read-only, by
// their flag or by their certificate, change nothing.
func TestAnS3EndpointStaysInItsDirectory(t *testing.T) {
	t.Parallel()
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 1})
	works(t, settingsFor(c), "cluster", "status", "--wait", "1m")
	cl, ctx := connect(t, c, client.Config{}), t.Context()
	for path, text := range map[string]string{"/data/bucket/own": "own bytes", "/other/file": "other bytes"} {
		_, err := cl.MkdirAll(ctx, path[:strings.LastIndex(path, "/")], 0o755)
		require.NoError(t, err)
		f, err := cl.Create(ctx, path, client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write([]byte(text))
		require.NoError(t, err)
		_, err = f.Commit(ctx)
		require.NoError(t, err)
	}
	for link, target := range map[string]string{"absolute": "/other", "relative": "../../other", "file": "/other/file", "within": "own", "up": "../bucket/own"} {
		_, err := cl.Symlink(ctx, target, "/data/bucket/"+link)
		require.NoError(t, err)
	}
	ca, err := pki.LoadCA(c.Certs())
	require.NoError(t, err)
	reader, err := ca.Issue(pki.Request{Role: pki.RoleGateway, Node: "reader", ReadOnly: true, Now: time.Now()})
	require.NoError(t, err)
	require.NoError(t, reader.Save(c.Certs(), "reader"))
	for what, cfg := range map[string]devcluster.S3Config{"all": {Root: "/data"}, "a flag": {Root: "/data", ReadOnly: true}, "a certificate": {Root: "/data", Identity: "reader"}} {
		mc := minioClient(t, startS3With(t, c, cfg).Node)
		get := func(key string) (string, error) {
			o, err := mc.GetObject(ctx, "bucket", key, minio.GetObjectOptions{})
			require.NoError(t, err)
			defer o.Close()
			b, err := io.ReadAll(o)
			return string(b), err
		}
		for _, key := range []string{"own", "within", "up"} {
			text, err := get(key)
			require.NoError(t, err, key)
			require.Equal(t, "own bytes", text)
		}
		for _, key := range []string{"absolute/file", "relative/file", "file"} {
			text, err := get(key)
			require.Equal(t, "NoSuchKey", minio.ToErrorResponse(err).Code, "%s %s: %v", key, text, err)
		}
		var keys []string
		for o := range mc.ListObjects(ctx, "bucket", minio.ListObjectsOptions{Recursive: true}) {
			require.NoError(t, o.Err)
			keys = append(keys, o.Key)
		}
		require.Equal(t, []string{"own", "up", "within"}, keys)
		put := func(key string) error {
			_, err := mc.PutObject(ctx, "bucket", key, strings.NewReader("new"), 3, minio.PutObjectOptions{})
			return err
		}
		require.Error(t, put("absolute/file"))
		require.Error(t, put("relative/new/file"))
		core := minio.Core{Client: mc}
		changes := map[string]func() error{
			"put":    func() error { return put("new") },
			"delete": func() error { return mc.RemoveObject(ctx, "bucket", "new", minio.RemoveObjectOptions{}) },
			"copy": func() error {
				_, err := mc.CopyObject(ctx, minio.CopyDestOptions{Bucket: "bucket", Object: "copy"}, minio.CopySrcOptions{Bucket: "bucket", Object: "own"})
				return err
			},
			"upload": func() error {
				_, err := core.NewMultipartUpload(ctx, "bucket", "upload", minio.PutObjectOptions{})
				return err
			},
			"bucket": func() error { return mc.MakeBucket(ctx, "new-bucket", minio.MakeBucketOptions{}) },
		}
		for name, change := range changes {
			if err := change(); what == "all" {
				require.NoError(t, err, name)
			} else {
				require.Equal(t, "AccessDenied", minio.ToErrorResponse(err).Code, "%s under %s: %v", name, what, err)
			}
		}
		if what == "all" {
			require.NoError(t, mc.RemoveObject(ctx, "bucket", "copy", minio.RemoveObjectOptions{}))
			_ = mc.RemoveObject(ctx, "bucket", "new", minio.RemoveObjectOptions{})
			require.NoError(t, cl.RemoveAll(ctx, "/data/new-bucket"))
		}
	}
	a, err := cl.Stat(ctx, "/other/file")
	require.NoError(t, err)
	require.EqualValues(t, len("other bytes"), a.Size())
	_, err = cl.Stat(ctx, "/other/new")
	require.Error(t, err)
}
