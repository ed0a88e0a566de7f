// Package integration_test holds the tests of whole clusters: as real processes
// that are killed, and in one process whose power is cut.
//
// One path through it: startProcs starts a cluster of processes from the binary of
// the tree, connect opens a client of it, and the cluster ends with the test. Long
// forms run with MORAINE_TEST_LONG=1 (`make test-long`). Every random test prints
// its seed; MORAINE_TEST_SEED repeats one.
package integration_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/netns"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/stretchr/testify/require"
)

// long reports whether the long form is requested.
func long() bool { return testseed.Long() }

// rounds returns n in the long form, and short otherwise.
func rounds(short, n int) int { return testseed.Of(short, n) }

// seed returns the seed of a random test, and prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	return testseed.First(t)
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// binary builds the moraine executable, once for all tests of the package.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "moraine-test-bin-")
	if err != nil {
		return "", err
	}
	built.Store(&dir)
	path := filepath.Join(dir, "moraine")
	return path, devcluster.Build(context.Background(), path)
})

// built is the directory of the executable, nil if no test has needed it.
var built atomic.Pointer[string]

// TestMain runs the tests without the settings of the caller: a shell may name a
// cluster, as the README says, and no test may use that one. Variables that tests
// set for their own processes begin with MORAINE_TEST_.
func TestMain(m *testing.M) {
	if spec := os.Getenv(trainerVariable); spec != "" {
		beTrainer(spec)
		return
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "MORAINE_") && !strings.HasPrefix(name, "MORAINE_TEST_") {
			os.Unsetenv(name)
		}
	}
	code := m.Run()
	if dir := built.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
	os.Exit(code)
}

// startProcs starts a cluster of processes that ends with the test. If the test
// failed, it shows the ends of the logs. Such a test mostly waits, for elections,
// leases and processes, so it runs in parallel with others of its kind.
func startProcs(t *testing.T, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	return startProcsIn(t, filepath.Join(t.TempDir(), "cluster"), cfg)
}

// chunkMemory is the memory of a chunkserver, unless a test names another. A server
// touches all of it before it serves: with the 256 MiB of devcluster, a third of the
// processor time of a test goes to that.
const chunkMemory = "64MiB"

// startProcsIn is startProcs in a directory that the test has prepared.
func startProcsIn(t *testing.T, dir string, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	cfg.Binary, cfg.Dir = path, dir
	cfg.ChunkserverArgs = append([]string{"--memory", chunkMemory}, cfg.ChunkserverArgs...) // the last one counts
	c, err := devcluster.Start(t.Context(), cfg)
	if errors.Is(err, netns.ErrCannot) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.All() {
				t.Logf("%s:\n%s", n.Name, n.LogTail(20))
			}
		}
		if err := c.Close(); err != nil {
			t.Log(err)
		}
	})
	return c
}

// connect opens a client of a cluster of processes; it ends with the test.
func connect(t *testing.T, c *devcluster.Cluster, cfg client.Config) *client.Client {
	t.Helper()
	id, err := pki.LoadIdentity(pki.FilesIn(c.Certs(), "admin"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(c.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	for _, n := range c.Nodes(devcluster.Metadata) {
		cfg.Metadata = append(cfg.Metadata, []string{n.Address})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := client.Dial(ctx, cfg, client.Deps{Dialer: pool})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cl.Close() // servers may be dead by now
		_ = pool.Close()
	})
	return cl
}
