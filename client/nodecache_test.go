package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
)

// readWhole reads a file by its path.
func readWhole(c *cluster, cl *client.Client, path string) ([]byte, error) {
	r, err := cl.OpenFile(c.ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p := make([]byte, r.Size())
	_, err = r.ReadAt(c.ctx, p, 0)
	if len(p) > 0 && err == nil {
		err = r.ReadRange(c.ctx, p[:1], 0)
	}
	return p, err
}

// Bytes that one client has read come from the node's disk for the next, also for a client that
// opens the directory later. The test proves it: no chunkserver answers.
func TestTheNodesCacheAnswersWithoutServers(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.CacheDir, cfg.CacheBytes = t.TempDir(), 1<<30
		data := bytesOf(3, 700_001)
		first := c.dial("c1", cfg)
		write(t, c, first, "/f", data, 1<<30, false)
		got, err := readWhole(c, first, "/f")
		require.NoError(t, err)
		require.Equal(t, sum(data), sum(got))
		synctest.Wait() // what was read is stored
		for _, h := range c.Hosts {
			h.Before(func(ctx context.Context, _ any) error { <-ctx.Done(); return ctx.Err() })
		}
		second := c.dial("c2", cfg)
		for _, cl := range []*client.Client{first, second} {
			got, err = readWhole(c, cl, "/f")
			require.NoError(t, err)
			require.Equal(t, sum(data), sum(got))
		}
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		time.Sleep(time.Minute)
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
	})
}

// A file that was written again has another content, of which the cache has nothing.
func TestTheNodesCacheHasNoOldBytes(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.CacheDir, cfg.CacheBytes = t.TempDir(), 1<<30
		reader, writer := c.dial("c1", cfg), c.dial("c2", config())
		for i := range uint64(4) {
			data := bytesOf(i, 300_000)
			write(t, c, writer, "/f", data, 1<<30, i > 0)
			for range 2 {
				got, err := readWhole(c, reader, "/f")
				require.NoError(t, err)
				require.Equal(t, sum(data), sum(got))
				synctest.Wait()
			}
		}
		require.NoError(t, reader.Close())
		require.NoError(t, writer.Close())
	})
}
