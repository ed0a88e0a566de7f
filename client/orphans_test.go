package client_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// TestAFailedReleaseIsRepeated: the service refuses the releases of removed files for hours. The client
// tries again ever less often, and at least each 5 minutes. It logs it, and frees all files at the end.
func TestAFailedReleaseIsRepeated(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		var log bytes.Buffer
		old := c.Log
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		cl := c.dial("c1", config())
		c.Log = old
		var mu sync.Mutex
		var met []time.Time
		refuses := true
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			mu.Lock()
			defer mu.Unlock()
			if req.GetRelease() == nil || !refuses {
				return nil, nil
			}
			met = append(met, time.Now())
			return nil, &moraine.Error{Op: "test", Kind: moraine.PermissionDenied}
		})
		var files []moraine.InodeID
		for range 3 {
			a, err := cl.Inodes().CreateUnnamed(c.ctx, cl.Root(), client.NodeOptions{Mode: 0o644})
			require.NoError(t, err)
			require.ErrorIs(t, cl.Inodes().Release(c.ctx, a.Inode()), moraine.PermissionDenied)
			files = append(files, a.Inode())
		}
		time.Sleep(3 * time.Hour)
		mu.Lock()
		refuses = false
		again := met[len(files):]
		mu.Unlock()
		for i := 1; i < len(again); i++ {
			require.LessOrEqual(t, again[i].Sub(again[i-1]), 5*time.Minute+time.Second)
		}
		require.Greater(t, len(again), 3*60/5)
		require.Less(t, len(again), 2*3*60/5)
		require.LessOrEqual(t, strings.Count(log.String(), "removed files were not released"), len(again)-2, "the first failures have one line in 10 s")
		require.Contains(t, log.String(), "removed files were not released")
		time.Sleep(6 * time.Minute)
		for _, f := range files {
			_, err := cl.Inodes().Stat(c.ctx, f)
			require.ErrorIs(t, err, moraine.NotFound)
		}
		require.NoError(t, cl.Close())
	})
}
