// Package doors_test runs a whole cluster with all its interfaces at once: two
// mounts, the S3 endpoint, and a Go client. Below them is the object tier over a
// real S3 server, a process of its own that can be killed.
//
// The cluster is that of package incluster: every part is the shipped one. This
// process serves the mounts, which are real. So the tests must not map their files
// into memory, or start a process.
//
// One path through it: startWorld runs the cluster, mount and endpoint open its
// interfaces, and a worker (worker_test.go) takes random steps against the model.
// MORAINE_TEST_LONG=1 runs the long form. A random test prints its seed;
// MORAINE_TEST_SEED repeats one.
package doors_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/s3"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/s3test"
	"github.com/morainefs/moraine/transport/memnet"
)

func TestMain(m *testing.M) {
	// The tests of the object tier mostly wait for leases to end.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(s3test.Main(m))
}

func long() bool { return testseed.Long() }

// firstSeed returns the seed of a random test.
func firstSeed(t *testing.T) uint64 {
	t.Helper()
	return testseed.First(t)
}

// world is a cluster with an object tier.
type world struct {
	*incluster.Cluster
	store  *s3test.Server
	config object.Config // of the bucket, without a proxy in between
	direct *minio.Core   // the bucket, as any S3 client sees it
	admin  *incluster.Client
}

// worldOptions are those of a world; a zero means the default in the comment.
type worldOptions struct {
	incluster.Options                // 1 metadata server, 3 chunkservers
	store             *s3test.Server // of the bucket (one that tests share)
	endpoint          string         // of the bucket (the server's)
	prefix            string         // of keys (the test's name)
}

// startWorld runs a cluster until the test ends.
func startWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := &world{store: o.store}
	if w.store == nil {
		w.store = s3test.Start(t)
	}
	w.config = w.store.Config(t, w.store.Endpoint)
	if o.prefix != "" {
		w.config.Prefix = o.prefix
	}
	cfg := w.config
	if o.endpoint != "" {
		cfg.Endpoint = o.endpoint
	}
	if o.Metadata == 0 {
		o.Metadata = 1
	}
	if o.Chunkservers == 0 {
		o.Chunkservers = 3
	}
	o.SegmentBytes, o.SettleTime, o.Grace = 8<<20, time.Second, 5*time.Second
	o.Bucket = func(string) (object.Store, error) {
		b, err := object.New(cfg, object.Deps{})
		if err == nil { // so that a fault of the test does not hit a request of the probe
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, _ = b.Traits(ctx)
		}
		return b, err
	}
	if os.Getenv("MORAINE_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	w.direct, err = minio.NewCore(strings.TrimPrefix(w.store.Endpoint, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""), Region: "us-east-1"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	o.SnapshotEntries, o.MemTableBytes = 5000, 4<<20 // these tests do not cover how the state is stored
	w.Cluster, err = incluster.Start(ctx, o.Options)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.Stop())
		stop()
	})
	w.Net.SetFaults("*", "*", memnet.Faults{}) // no delays
	require.NoError(t, w.WaitReady(ctx))
	w.admin, err = w.Admin(ctx, "admin")
	require.NoError(t, err)
	endWith(t, w.admin)
	return w
}

// client opens a client until the test ends.
func (w *world) client(t *testing.T, node string) *incluster.Client {
	t.Helper()
	c, err := w.Client(t.Context(), node)
	require.NoError(t, err)
	endWith(t, c)
	return c
}

// endWith closes a client with the test. It ignores the error if a busy machine
// lets the close exceed its patience.
func endWith(t *testing.T, c *incluster.Client) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Log(err)
		}
	})
}

// mount mounts the root until the test ends. It skips the test if nothing can be
// mounted.
func (w *world) mount(t *testing.T, node string) *mountDoor {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	} else {
		require.NoError(t, f.Close())
	}
	m := &mountDoor{label: node, dir: t.TempDir()}
	fsys, err := fuse.New(fuse.Config{Dir: m.dir}, fuse.Deps{Client: w.client(t, node).Client})
	require.NoError(t, err)
	runUntilEnd(t, fsys.Run)
	return m
}

// endpoint runs the S3 endpoint until the test ends. A process can have one.
func (w *world) endpoint(t *testing.T) *s3Door {
	t.Helper()
	const access, secret = "testaccess", "testsecret"
	addrs, err := devcluster.FreeAddresses(1)
	require.NoError(t, err)
	c := w.client(t, "gateway")
	runUntilEnd(t, func(ctx context.Context, ready func()) error {
		server, err := s3.New(s3.Config{Listen: addrs, AccessKey: access, SecretKey: secret}, s3.Deps{Client: c.Client, Ready: ready})
		if err != nil {
			return err
		}
		return server.Run(ctx)
	})
	core, err := minio.NewCore(addrs[0], &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: s3.DefaultRegion})
	require.NoError(t, err)
	return &s3Door{core: core}
}

// runUntilEnd runs a function until the test ends, and returns when it is ready.
func runUntilEnd(t *testing.T, run func(ctx context.Context, ready func()) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		stop()
		require.FailNow(t, "it ended before it was ready", "%v", err)
	}
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

// eventually polls until done returns true.
func eventually(t *testing.T, within time.Duration, what string, done func() (bool, string)) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		ok, state := done()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			require.FailNow(t, "waited in vain for "+what, state)
		}
	}
}

// prefixOf is a prefix of keys that no other run uses.
func prefixOf(seed uint64) string { return fmt.Sprintf("run-%016x", seed) }
