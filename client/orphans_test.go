package client_test

import (
	"bytes"
	"fmt"
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

// TestAReaderKeepsARemovedFile: a reader has read the begin of a file, and a client takes its name.
// Much later the reader reads the rest. Then it closes, and the file is gone.
func TestAReaderKeepsARemovedFile(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		type lost struct {
			path string
			data []byte
			r    *client.Reader
		}
		var files []lost
		for name, lose := range map[string]func(path string){
			"removed":           func(path string) { require.NoError(t, other.Remove(c.ctx, path)) },
			"replaced":          func(path string) { write(t, c, other, path, bytesOf(9, 100), 100, false) },
			"removed by itself": func(path string) { require.NoError(t, cl.Remove(c.ctx, path)) },
		} {
			for _, size := range []int{5000, 600_000} {
				f := lost{path: fmt.Sprintf("/%s %d", name, size), data: bytesOf(uint64(size), size)}
				write(t, c, other, f.path, f.data, size, false)
				var err error
				f.r, err = cl.OpenFile(c.ctx, f.path)
				require.NoError(t, err)
				same, err := cl.Inodes().Open(c.ctx, f.r.Attr().Inode())
				require.NoError(t, err)
				require.NoError(t, f.r.ReadRange(c.ctx, make([]byte, 10), 0))
				lose(f.path)
				require.NoError(t, same.Close()) // f.r still has it open
				files = append(files, f)
			}
		}
		time.Sleep(10 * time.Minute)
		for _, f := range files {
			got := make([]byte, len(f.data))
			require.NoError(t, f.r.ReadRange(c.ctx, got, 0), f.path)
			require.True(t, bytes.Equal(f.data, got), f.path)
			require.NoError(t, f.r.Close())
		}
		time.Sleep(time.Minute)
		for _, f := range files {
			_, err := cl.Inodes().Stat(c.ctx, f.r.Attr().Inode())
			require.ErrorIs(t, err, moraine.NotFound, f.path)
		}
	})
}
