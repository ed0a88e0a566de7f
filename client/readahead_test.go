package client_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestSequentialReadsOfAnySize reads a file in order by reads of several sizes, narrow and
// wide, with and without earlier bytes in memory. The bytes are right, and none is fetched more
// than twice.
func TestSequentialReadsOfAnySize(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 9_300_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		for _, sizes := range [][]int{{4096}, {200_000}, {1 << 20}, {3 << 20}, {len(data)}, {100_000, 100_000, 2 << 20}, {2 << 20, 2 << 20, 70_000}} {
			before := gotten(c)
			r, err := cl.OpenFile(c.ctx, "/f")
			require.NoError(t, err)
			for off, n := 0, 0; off < len(data); n++ {
				p := make([]byte, min(sizes[n%len(sizes)], len(data)-off))
				_, err := r.ReadAt(c.ctx, p, int64(off))
				require.NoError(t, err)
				require.True(t, bytes.Equal(data[off:off+len(p)], p), "at %d, of reads of %v", off, sizes)
				off += len(p)
			}
			require.NoError(t, r.Close())
			require.LessOrEqual(t, gotten(c)-before, int64(2*len(data)), "reads of %v", sizes)
		}
	})
}

// TestWideReadsAreReadInPlace: only the beginning of a wide read is fetched ahead and copied.
// With small reads of the same bytes nearly all is.
func TestWideReadsAreReadInPlace(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		data := bytesOf(7, 8<<20)
		metrics := client.NewMetrics(nil)
		d := c.Net.Dialer(memcluster.Peer(transport.RoleClient, "c1"))
		defer d.Close()
		cl, err := client.Dial(c.ctx, config(), client.Deps{Dialer: d, Log: c.Log, Metrics: metrics})
		require.NoError(t, err)
		defer cl.Close()
		write(t, c, cl, "/f", data, 1<<30, false)
		count := func() float64 {
			var m dto.Metric
			require.NoError(t, client.ReadaheadHits(metrics).Write(&m))
			return m.GetCounter().GetValue()
		}
		hits := func(size int) float64 {
			before := count()
			r, err := cl.OpenFile(c.ctx, "/f")
			require.NoError(t, err)
			defer r.Close()
			p := make([]byte, size)
			for off := 0; off < len(data); off += size {
				_, err := r.ReadAt(c.ctx, p, int64(off))
				require.NoError(t, err)
				require.True(t, bytes.Equal(data[off:off+size], p))
			}
			return count() - before
		}
		const blocks = 32 // of 256 KiB
		require.Greater(t, hits(256<<10), float64(blocks-4))
		wide := hits(2 << 20) // 4 calls of 8 blocks
		require.Positive(t, wide)
		require.LessOrEqual(t, wide, float64(2*4))
	})
}

// TestAWideReadThatFailsHasLetGo makes a wide read of a sequence fail, in what was fetched
// ahead and in the rest. Nothing writes into its memory afterwards, and the next read is right.
func TestAWideReadThatFailsHasLetGo(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(7, 9_300_000)
		write(t, c, cl, "/f", data, 1<<30, false)
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		p := make([]byte, 3<<20)
		for _, off := range []int64{0, 3 << 20} {
			_, err := r.ReadAt(c.ctx, p, off)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		var asked atomic.Int32
		for _, h := range c.Hosts {
			h.Before(func(ctx context.Context, req any) error {
				if _, get := req.(*wire.GetChunk); get && asked.Add(1) == 5 {
					cancel()
				}
				return nil
			})
		}
		p = make([]byte, 3<<20)
		_, err = r.ReadAt(ctx, p, 6<<20)
		require.ErrorIs(t, err, moraine.Canceled)
		clear(p)
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		again := make([]byte, 2<<20)
		n, err := r.ReadAt(c.ctx, again, 6<<20)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data[6<<20:6<<20+n], again))
		require.Equal(t, make([]byte, len(p)), p)
	})
}

func gotten(c *cluster) (n int64) {
	for _, h := range c.Hosts {
		n += h.Counts().GetBytes
	}
	return n
}
