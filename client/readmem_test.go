package client_test

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
)

// littleMemory is the smallest budget, with chunks that fill it soon.
func littleMemory() client.Config {
	cfg := config()
	cfg.ChunkBytes, cfg.MemoryBytes = 1<<20, client.MinMemory
	return cfg
}

// TestManyDegradedReadsInLittleMemory runs many reads at once that must rebuild. Each knows
// that one host is down, and reads a chunk of parity early. It does not know that another chunk
// is wrong, so it needs more memory while it already has some. Each file is read once, because
// the client would remember the bad chunk. No read may wait for memory that the others have.
func TestManyDegradedReadsInLittleMemory(t *testing.T) {
	const files, n = 24, 4 << 20
	inCluster(t, 6, func(c *cluster) {
		data := bytesOf(3, n)
		cl := c.dial("c1", littleMemory())
		defer cl.Close()
		for i := range files + 1 {
			write(t, c, cl, fmt.Sprintf("/f%d", i), data, 1<<30, false)
		}
		c.Hosts[0].Kill()
		require.True(t, bytes.Equal(data, read(t, c, cl, fmt.Sprintf("/f%d", files))), "from now on the first host is known to be away")
		c.Hosts[1].Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool { ch.Data[len(ch.Data)/2] ^= 4; return true })
		var wg sync.WaitGroup
		for i := range files {
			wg.Go(func() {
				r, err := cl.OpenFile(c.ctx, fmt.Sprintf("/f%d", i))
				if err != nil {
					t.Error(err)
					return
				}
				defer r.Close()
				got := make([]byte, n)
				if err := r.ReadRange(c.ctx, got, 0); err != nil || !bytes.Equal(data, got) {
					t.Errorf("read: %v", err)
				}
			})
		}
		wg.Wait()
		require.Positive(t, cl.Stats().StripesRebuilt)
	})
}

// TestManyStreamsInLittleMemory copies files from many streams into many files, degraded, at
// once. Between two calls a stream or a writer must not keep bytes that others wait for.
func TestManyStreamsInLittleMemory(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", littleMemory())
		defer cl.Close()
		data := bytesOf(4, 3_000_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		c.Hosts[0].Kill()
		c.Hosts[1].Change(func(_ moraine.ChunkID, ch *memcluster.Chunk) bool { ch.Data[len(ch.Data)/2] ^= 4; return true })
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				if err := copyFile(c, cl, fmt.Sprintf("/to%d", i), i%2 == 0); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range 2 {
			require.True(t, bytes.Equal(data, read(t, c, cl, fmt.Sprintf("/to%d", i))))
		}
	})
}

// copyFile copies /f by Stream.WriteTo, or by File.ReadFrom.
func copyFile(c *cluster, cl *client.Client, to string, push bool) error {
	r, err := cl.OpenFile(c.ctx, "/f")
	if err != nil {
		return err
	}
	s := r.NewStream(c.ctx, 0)
	defer s.Close()
	f, err := cl.Create(c.ctx, to, client.CreateOptions{})
	if err != nil {
		return err
	}
	defer f.Abort()
	if push {
		_, err = s.WriteTo(f)
	} else {
		_, err = f.ReadFrom(struct{ io.Reader }{s})
	}
	if err == nil {
		_, err = f.Commit(c.ctx)
	}
	return err
}
