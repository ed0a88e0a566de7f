package leases_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
)

// quotaOf leaves space for so many more files.
func quotaOf(t *testing.T, ctx context.Context, c *incluster.Cluster, files uint64) {
	t.Helper()
	admin, err := c.Admin(ctx, "admin")
	require.NoError(t, err)
	defer admin.Close()
	u, err := admin.Quotas().Usage(ctx, admin.Root())
	require.NoError(t, err)
	require.NoError(t, admin.Quotas().Set(ctx, admin.Root(), 0, u.Usage.Inodes+files))
}

// makeAndOpen does the same as a mount with a created file.
func (m *maker) makeAndOpen(ctx context.Context, name string, between func()) error {
	later := &client.Later{}
	a, err := m.Inodes().Create(ctx, m.dir, name, client.NodeOptions{Mode: 0o640, Exclusive: true, Later: later})
	if err != nil {
		return err
	}
	between()
	h, err := m.Inodes().OpenHandle(ctx, moraine.InodeID(a.Inode), client.HandleOptions{Later: later})
	if err != nil {
		return err
	}
	return h.Close(ctx)
}

// If the service refuses a file after it was made and before it is opened, the open
// returns the service's own error.
func TestAFileThatIsRefusedBeforeItIsOpened(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		m := newMaker(t, ctx, c, nil)
		defer m.Close()
		m.hold(t, ctx, "a")
		require.NoError(t, m.Inodes().SendMade(ctx, m.dir))
		quotaOf(t, ctx, c, 0)
		require.ErrorIs(t, m.makeAndOpen(ctx, "x", func() {
			require.ErrorIs(t, m.Inodes().SendMade(ctx, m.dir), moraine.QuotaExceeded)
		}), moraine.QuotaExceeded)
	})
}

// Many clients make, open and close files while these are sent. Exactly those files
// exist for which no client got an error.
func TestNoFileIsLostWithoutAnError(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		m := newMaker(t, ctx, c, nil)
		defer m.Close()
		want := m.hold(t, ctx, "a")
		require.NoError(t, m.Inodes().SendMade(ctx, m.dir))
		quotaOf(t, ctx, c, 50)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 40 {
					name := fmt.Sprintf("b%d-%02d", w, i)
					err := m.makeAndOpen(ctx, name, func() {})
					if err != nil && !errors.Is(err, moraine.QuotaExceeded) {
						t.Errorf("%s: %v", name, err)
					}
					if err == nil {
						mu.Lock()
						want = append(want, name)
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		require.ElementsMatch(t, want, list(t, ctx, m.Client, "d"))
	})
}
