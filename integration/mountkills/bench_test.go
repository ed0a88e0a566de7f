package mountkills_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

// built is the directory of the executable, nil if no test has needed it.
var built atomic.Pointer[string]

// executable builds the moraine executable, once.
var executable = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "moraine-test-bin-")
	if err != nil {
		return "", err
	}
	built.Store(&dir)
	path := filepath.Join(dir, "moraine")
	return path, devcluster.Build(context.Background(), path)
})

// bench is a cluster of processes with two mounts.
type bench struct {
	cluster *devcluster.Cluster
	mounts  [2]*mount
	admin   *client.Client
}

// newBench starts it. It ends with the test.
func newBench(t *testing.T) *bench {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	require.NoError(t, f.Close())
	path, err := executable()
	require.NoError(t, err)
	c, err := devcluster.Start(t.Context(), devcluster.Config{Binary: path, Dir: filepath.Join(t.TempDir(), "cluster"),
		Chunkservers: 3, ChunkserverArgs: []string{"--memory", "64MiB"}})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.All() {
				t.Logf("%s:\n%s", n.Name, n.LogTail(20))
			}
		}
		require.NoError(t, c.Close())
	})
	b := &bench{cluster: c}
	b.connect(t)
	for i := range b.mounts {
		b.mounts[i] = newMount(t, c, path)
	}
	return b
}

// connect opens a client, which finds out the leader.
func (b *bench) connect(t *testing.T) {
	t.Helper()
	id, err := pki.LoadIdentity(pki.FilesIn(b.cluster.Certs(), "admin"))
	require.NoError(t, err)
	pool, err := transport.NewPool(transport.PoolConfig{Mode: transport.Mode(b.cluster.Mode())}, transport.PoolDeps{Identity: id})
	require.NoError(t, err)
	var cfg client.Config
	for _, n := range b.cluster.Nodes(devcluster.Metadata) {
		cfg.Metadata = append(cfg.Metadata, []string{n.Address})
	}
	b.admin, err = client.Dial(t.Context(), cfg, client.Deps{Dialer: pool})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.admin.Close())
		require.NoError(t, pool.Close())
	})
}

// leader is the metadata server that leads.
func (b *bench) leader(t *testing.T) string {
	t.Helper()
	resp, err := rawclient.Of(b.admin).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	require.NoError(t, err)
	for _, m := range resp.GetCluster().GetMetadata() {
		if m.Leader {
			return m.Id
		}
	}
	t.Fatal("no metadata server leads")
	return ""
}

// command runs moraine, for a cluster.
func command(c *devcluster.Cluster, bin string, args ...string) (string, error) {
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "MORAINE_ENDPOINT="+c.Endpoint(), "MORAINE_CERTS="+c.Certs(), "MORAINE_IDENTITY=admin", "MORAINE_MODE="+c.Mode())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// newMount mounts the cluster's root with the command, as shipped: with a supervisor, and with
// delegation.
func newMount(t *testing.T, c *devcluster.Cluster, bin string) *mount {
	t.Helper()
	m := &mount{dir: t.TempDir()}
	out, err := command(c, bin, "mount", "moraine:///", m.dir, "--json", "--log-file", m.dir+".log")
	require.NoError(t, err, out)
	var said struct{ Pid int }
	require.NoError(t, json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &said), out)
	m.supervisor = said.Pid
	t.Cleanup(func() {
		if text, err := os.ReadFile(m.dir + ".log"); t.Failed() && err == nil {
			t.Logf("log of the mount on %s:\n%s", m.dir, text[max(0, len(text)-8000):])
		}
		args := []string{"umount", m.dir}
		if t.Failed() {
			args = []string{"umount", "--force", m.dir}
		}
		out, err := command(c, bin, args...)
		require.NoError(t, err, out)
	})
	return m
}
