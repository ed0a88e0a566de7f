package twomounts_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/fsck"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
)

// bench is a cluster with its mounts, and an empty directory on ext4.
type bench struct {
	*incluster.Cluster
	// dirs are those of the mounts: two for the steps, and one that only looks at the end.
	dirs [3]string
	// delegated is that of a mount whose client takes delegated directories.
	delegated string
	ext4      string
	// admin sees the whole cluster.
	admin *incluster.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil || os.Geteuid() != 0 {
		t.Skipf("root and /dev/fuse are needed to mount for several users: uid %d, %v", os.Geteuid(), err)
	}
	require.NoError(t, f.Close())
	ctx, stop := context.WithCancel(context.Background())
	c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Chunkservers: 3, SnapshotEntries: 5000, MemTableBytes: 4 << 20})
	require.NoError(t, err)
	c.Net.SetFaults("*", "*", memnet.Faults{}) // no delays
	t.Cleanup(func() {
		require.NoError(t, c.Stop())
		stop()
	})
	require.NoError(t, c.WaitReady(ctx))
	b := &bench{Cluster: c, ext4: ext4(t)}
	for i := range b.dirs {
		b.dirs[i] = b.mount(t, fmt.Sprint("c", i+1), client.Config{})
	}
	b.delegated = b.mount(t, "delegated", client.Config{Delegation: true})
	b.admin, err = c.Admin(ctx, "admin")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.admin.Close()) })
	return b
}

// mount mounts the cluster's root with a client of its own, until the test ends.
func (b *bench) mount(t *testing.T, node string, cfg client.Config) string {
	t.Helper()
	cl, err := b.ClientWith(t.Context(), node, cfg)
	require.NoError(t, err)
	dir := t.TempDir()
	m, err := fuse.New(fuse.Config{Dir: dir, AllowOther: true}, fuse.Deps{Client: cl.Client, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- m.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, cl.Close())
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		require.NoError(t, err)
	}
	return dir
}

// ext4 returns an empty directory on ext4: a temporary one, or one of an image.
func ext4(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	if st.Type == unix.EXT4_SUPER_MAGIC {
		return dir
	}
	image := filepath.Join(t.TempDir(), "image")
	out, err := exec.Command("bash", "-euc", `truncate -s 1G "$1"; mkfs.ext4 -q "$1"; mount -o loop "$1" "$2"`, "bash", image, dir).CombinedOutput()
	if err != nil {
		t.Skipf("NOTHING WAS COMPARED: %s is not on ext4, and no image can be mounted: %v\n%s", dir, err, out)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

// mounts are those of a seed.
func (b *bench) mounts(seed uint64) [3]string {
	dirs := b.dirs
	if i := delegatedOf(seed); i >= 0 {
		dirs[i] = b.delegated
	}
	return dirs
}

// delegatedOf is which of the mounts of a seed takes delegated directories: in half of
// the seeds one of the first two, in others none (-1).
func delegatedOf(seed uint64) int {
	if seed%2 == 0 {
		return -1
	}
	return int(seed / 2 % 2)
}

// delegations counts what the service has delegated, and the changes made there.
func (b *bench) delegations(t *testing.T) (directories, changes float64) {
	t.Helper()
	for _, reg := range b.Metrics.Clients() {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			switch f.GetName() {
			case "moraine_client_delegations_total":
				directories += f.GetMetric()[0].GetCounter().GetValue()
			case "moraine_client_delegated_changes_total":
				changes += f.GetMetric()[0].GetCounter().GetValue()
			}
		}
	}
	return directories, changes
}

// check finds nothing wrong in the metadata and on the devices.
func (b *bench) check(t *testing.T) {
	t.Helper()
	require.NoError(t, b.Check())
	d := b.Dialer(transport.RoleAdmin, "checker")
	defer d.Close()
	r, err := fsck.New(fsck.Config{}, fsck.Deps{Meta: rawclient.Of(b.admin.Client).Meta, Chunks: d.Chunks, Walk: b.admin.Walk}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.Clean(), "%+v", r)
}
