package integration_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// usedBytes is the space used on all devices, by their last report.
func usedBytes(ctx context.Context, cl *client.Client) (used uint64, err error) {
	resp, err := rawclient.Of(cl).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return 0, err
	}
	for _, h := range resp.GetCluster().Topology.GetHosts() {
		for _, d := range h.Devices {
			used += d.Used
		}
	}
	return used, nil
}

// waitUsed returns when the used space is as it should be.
func waitUsed(ctx context.Context, cl *client.Client, why string, right func(used uint64) bool) error {
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(time.Second) {
		used, err := usedBytes(ctx, cl)
		if err != nil || right(used) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %d bytes are in use", why, used)
		}
	}
}

// TestSpaceOfAbandonedWritesComesBack writes files that never get a name: one is
// abandoned, and the writer of the other dies. Minutes later the devices hold only
// the committed data.
func TestSpaceOfAbandonedWritesComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Grace: 3 * time.Second, SessionTimeout: 20 * time.Second})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		watcher, err := c.Client(ctx, "watcher")
		require.NoError(t, err)
		defer watcher.Close()
		begin := func(cl *incluster.Client, name string) *client.File {
			f, err := cl.Create(ctx, name, client.CreateOptions{})
			require.NoError(t, err)
			_, err = f.Write(make([]byte, 8<<20))
			require.NoError(t, err)
			return f
		}

		f := begin(watcher, "/kept")
		_, err = f.Commit(ctx)
		require.NoError(t, err)
		const file = 12 << 20 // 4+2
		var kept uint64
		require.NoError(t, waitUsed(ctx, watcher.Client, "of the file that is kept", func(used uint64) bool {
			kept = used
			return used >= file
		}))
		abandoned := func(used uint64) bool { return used >= kept+file/2 } // bytes still in memory may never reach a device

		f = begin(watcher, "/aborted")
		require.NoError(t, waitUsed(ctx, watcher.Client, "before the abort", abandoned))
		f.Abort()
		writer, err := c.Client(ctx, "writer")
		require.NoError(t, err)
		begin(writer, "/dead")
		writer.Kill()
		back := func(used uint64) bool { return used <= kept }
		require.NoError(t, waitUsed(ctx, watcher.Client, "of abandoned writes", back))
		r, err := watcher.OpenFile(ctx, "/kept")
		require.NoError(t, err)
		require.NoError(t, r.ReadRange(ctx, make([]byte, 8<<20), 0))
		require.NoError(t, r.Close())
	})
}
