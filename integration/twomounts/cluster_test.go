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

// arena is a cluster with its mounts, and an empty directory on ext4.
type arena struct {
	*incluster.Cluster
	// dirs are those of the mounts: two for the steps, and one that only looks at the end.
	dirs [3]string
	ext4 string
	// admin sees the whole cluster.
	admin *incluster.Client
}

func newArena(t *testing.T) *arena {
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
	a := &arena{Cluster: c, ext4: ext4(t)}
	for i := range a.dirs {
		a.dirs[i] = a.mount(t, fmt.Sprint("c", i+1))
	}
	a.admin, err = c.Admin(ctx, "admin")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.admin.Close()) })
	return a
}

// mount mounts the cluster's root with a client of its own, until the test ends.
func (a *arena) mount(t *testing.T, node string) string {
	t.Helper()
	cl, err := a.ClientWith(t.Context(), node, client.Config{})
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

// check finds nothing wrong in the metadata and on the devices.
func (a *arena) check(t *testing.T) {
	t.Helper()
	require.NoError(t, a.Check())
	d := a.Dialer(transport.RoleAdmin, "checker")
	defer d.Close()
	r, err := fsck.New(fsck.Config{}, fsck.Deps{Meta: rawclient.Of(a.admin.Client).Meta, Chunks: d.Chunks, Walk: a.admin.Walk}).Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.Clean(), "%+v", r)
}
