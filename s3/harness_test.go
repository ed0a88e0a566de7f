package s3_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/s3"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	accessKey = "testaccess"
	secretKey = "test/secret+key"
	// maxConnections is the most connections of the endpoint.
	maxConnections = 512
	// headerTimeout is that of the endpoint.
	headerTimeout = 5 * time.Second
	// stallTimeout is that of the endpoint: long enough for a loaded machine.
	stallTimeout = 10 * time.Second
	// served is the directory whose subdirectories are the buckets.
	served = "/served"
)

// shared is one cluster with one endpoint, which all tests of the package use, each
// with buckets of its own: a process can run one endpoint.
var shared struct {
	cluster  *incluster.Cluster
	owner    *incluster.Client // sees the whole cluster
	client   *incluster.Client // of the endpoint, whose certificate is confined to served
	endpoint string            // HOST:PORT
	devices  incluster.Hold    // of the cluster
	// bare makes commits tell the client that they protect from no failure, as when
	// only one host can store bytes.
	bare atomic.Bool
	// failing makes all requests of the client to the metadata service fail.
	failing atomic.Bool
	// before, if set, is called with each request of the client before it is sent.
	before atomic.Pointer[func(*wire.MetaRequest)]
}

// atFirst calls fn right before the first request for which so is true, and returns
// a function that reports whether there was one.
func atFirst(t *testing.T, so func(*wire.MetaRequest) bool, fn func()) (ran func() bool) {
	var began, done atomic.Bool
	hook := func(req *wire.MetaRequest) {
		if so(req) && began.CompareAndSwap(false, true) { // fn makes requests too
			fn()
			done.Store(true)
		}
	}
	shared.before.Store(&hook)
	t.Cleanup(func() { shared.before.Store(nil) })
	return done.Load
}

// barely is the network of a client that gets this answer at times.
func barely(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		if hook := shared.before.Load(); hook != nil {
			(*hook)(req)
		}
		if shared.failing.Load() {
			return nil, &moraine.Error{Op: "test", Kind: moraine.PermissionDenied}
		}
		resp, err := m.Do(ctx, req)
		if r := resp.GetCommit(); r != nil && shared.bare.Load() {
			r.Protects = 0
		}
		return resp, err
	})
}

func TestMain(m *testing.M) {
	code, err := serve(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// serve runs the tests with a cluster and an endpoint.
func serve(m *testing.M) (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Chunkservers: 3, SegmentBytes: 8 << 20, SnapshotEntries: 5000, MemTableBytes: 8 << 20, Log: log,
		Rule: shared.devices.Rule})
	if err != nil {
		return 0, err
	}
	defer c.Stop()                             //nolint:errcheck // the tests have ended
	c.Net.SetFaults("*", "*", memnet.Faults{}) // the tests cover the endpoint, not the network
	if err := c.WaitReady(ctx); err != nil {
		return 0, err
	}
	owner, err := c.Client(ctx, "owner")
	if err != nil {
		return 0, err
	}
	defer owner.Close()
	if _, err := owner.Mkdir(ctx, served, 0o755); err != nil {
		return 0, err
	}
	cl, err := c.ClientAsOver(ctx, transport.Peer{Role: transport.RoleGateway, Node: "gateway", Scope: served}, client.Config{}, barely)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	addrs, err := devcluster.FreeAddresses(1)
	if err != nil {
		return 0, err
	}
	shared.cluster, shared.owner, shared.client, shared.endpoint = c, owner, cl, addrs[0]
	ready := make(chan struct{})
	server, err := s3.New(s3.Config{Listen: addrs, MaxConnections: maxConnections, HeaderTimeout: headerTimeout, StallTimeout: stallTimeout, AccessKey: accessKey, SecretKey: secretKey},
		s3.Deps{Client: cl.Client, Log: log, Ready: func() { close(ready) }})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	select {
	case <-ready:
	case err := <-ended:
		return 0, fmt.Errorf("the endpoint ended: %w", err)
	}
	code := m.Run()
	cancel()
	return code, <-ended
}

// seed returns the seed of a random test, and prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	return testseed.First(t)
}

// bytesOf returns n bytes that differ for every seed.
func bytesOf(seed uint64, n int) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	r.Read(data) //nolint:errcheck // it has no errors
	return data
}

// dial returns a minio client with a key.
func dial(t *testing.T, access, secret string) *minio.Core {
	c, err := minio.NewCore(shared.endpoint, &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: s3.DefaultRegion})
	require.NoError(t, err)
	return c
}

// bucket makes a bucket for a test.
func bucket(t *testing.T, c *minio.Core, name string) string {
	require.NoError(t, c.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}))
	return name
}

// put stores an object in one request.
func put(t *testing.T, c *minio.Core, bucket, key string, data []byte, opts minio.PutObjectOptions) minio.UploadInfo {
	t.Helper()
	opts.DisableMultipart = true
	info, err := c.Client.PutObject(t.Context(), bucket, key, bytes.NewReader(data), int64(len(data)), opts)
	require.NoError(t, err)
	return info
}

// get returns an object's bytes.
func get(t *testing.T, c *minio.Core, bucket, key string, opts minio.GetObjectOptions) ([]byte, minio.ObjectInfo) {
	t.Helper()
	body, info, _, err := c.GetObject(t.Context(), bucket, key, opts)
	require.NoError(t, err)
	defer body.Close()
	var out bytes.Buffer
	_, err = out.ReadFrom(body)
	require.NoError(t, err)
	return out.Bytes(), info
}

// putSummed puts an object with a checksum in a header, which the minio client does
// not send by itself: the request is signed as a URL.
func putSummed(t *testing.T, c *minio.Core, bucket, key string, data []byte, sum minio.ChecksumType, value string) (status int, answer string) {
	t.Helper()
	u, err := c.PresignHeader(t.Context(), http.MethodPut, bucket, key, time.Minute, nil, http.Header{sum.Key(): {value}})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, u.String(), bytes.NewReader(data))
	require.NoError(t, err)
	req.Header.Set(sum.Key(), value)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// sumOf is the checksum of data in the form of headers.
func sumOf(data []byte, sum minio.ChecksumType) string {
	h := sum.Hasher()
	h.Write(data) //nolint:errcheck // it has no errors
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// code is the S3 code of an error.
func code(err error) string { return minio.ToErrorResponse(err).Code }

// putOptions are those of a PUT with a content type.
func putOptions(contentType string) minio.PutObjectOptions {
	return minio.PutObjectOptions{ContentType: contentType}
}
