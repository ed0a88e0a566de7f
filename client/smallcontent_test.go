package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// chunks returns how many chunks the hosts have.
func (c *cluster) chunks() (n int) {
	for _, h := range c.Hosts {
		n += h.Count()
	}
	return n
}

// Small content needs no stripe, by every way to write it, and reads back everywhere. What the
// metadata may not have goes to stripes.
func TestSmallContentNeedsNoStripe(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		for _, size := range []int{1, 4096, moraine.MaxInline} {
			data := bytesOf(uint64(size), size)
			name := fmt.Sprint("h", size)
			h := openNew(t, c, cl, name)
			writeAt(t, c, h, data[:size/2], 0)
			writeAt(t, c, h, data[size/2:], int64(size/2))
			require.NoError(t, h.Close(c.ctx))
			res := write(t, c, cl, fmt.Sprint("/f", size), data, 3000, false)
			require.Equal(t, sum(data), res.CRC)
			require.Equal(t, moraine.NVMe, res.Attr.Level())
			require.EqualValues(t, size, res.Attr.Inline())
			for _, path := range []string{"/" + name, fmt.Sprint("/f", size)} {
				require.True(t, bytes.Equal(data, read(t, c, other, path)), path)
			}
		}
		require.Zero(t, c.chunks())
		data := bytesOf(9, moraine.MaxInline+1)
		require.Zero(t, write(t, c, cl, "/large", data, 3000, false).Attr.Inline())
		require.Equal(t, data, read(t, c, other, "/large"))
		cfg := config()
		cfg.Scheme = moraine.Copies(3)
		schemed := c.dial("c3", cfg)
		defer schemed.Close()
		require.Zero(t, write(t, c, schemed, "/x3", data[:100], 3000, false).Attr.Inline(), "the caller named a scheme")
	})
}

// A client that has read a small file, or written it, needs no request for its content until the
// file has another generation.
func TestSmallContentIsReadOnce(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		data := bytesOf(5, 5000)
		write(t, c, cl, "/f", data, 5000, false)
		require.Equal(t, data, read(t, c, other, "/f"))
		var reads atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetGetExtents() != nil {
				reads.Add(1)
			}
			return nil, nil
		})
		for range 3 {
			require.Equal(t, data, read(t, c, other, "/f"))
		}
		h := openNew(t, c, other, "own")
		writeAt(t, c, h, data[:100], 0)
		require.NoError(t, h.Close(c.ctx))
		require.Equal(t, data[:100], read(t, c, other, "/own"))
		require.Zero(t, reads.Load())
		data = bytesOf(6, 6000)
		write(t, c, cl, "/f", data, 6000, false)
		require.Equal(t, data, read(t, c, other, "/f"))
	})
}

// Small writes of two clients to different places of one file are all there, although each commit
// brings the whole content: a client that lost the race writes its own bytes to a stripe.
func TestSmallContentLosesNoOthersWrites(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		h := openNew(t, c, cl, "f")
		o, err := other.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		want := bytesOf(1, 100)
		writeAt(t, c, h, want[:50], 0)
		writeAt(t, c, o, want[50:], 50)
		require.NoError(t, h.Flush(c.ctx))
		require.NoError(t, o.Flush(c.ctx))
		require.NoError(t, errors.Join(h.Close(c.ctx), o.Close(c.ctx)))
		require.Equal(t, want, read(t, c, cl, "/f"))
		require.Equal(t, want, read(t, c, other, "/f"))
	})
}

// TestSmallContentModel compares random writes, truncations, appends, clones and closes of a small
// file, by two clients in turn, with the expected bytes, while messages are lost and leaders
// change. MORAINE_TEST_SEED repeats a run; MORAINE_TEST_LONG=1 makes it long.
func TestSmallContentModel(t *testing.T) {
	seed, steps := testseed.First(t), testseed.Of(150, 3000)
	inCluster(t, 7, func(c *cluster) {
		clients := []*client.Client{c.dial("c1", config()), c.dial("c2", config())}
		defer clients[0].Close()
		defer clients[1].Close()
		rng := rand.New(rand.NewPCG(seed, 2))
		first := openNew(t, c, clients[0], "f")
		inode := first.Inode()
		require.NoError(t, first.Close(c.ctx))
		var want []byte
		inline := 0
		for i := range steps {
			disturb(c, rng, i)
			h, err := clients[rng.IntN(2)].Inodes().OpenHandle(c.ctx, inode, client.HandleOptions{})
			require.NoError(t, err)
			for range 1 + rng.IntN(3) {
				want = stepSmall(t, c, rng, h, want)
			}
			require.NoError(t, h.Close(c.ctx))
			if a, err := clients[0].Inodes().Stat(c.ctx, inode); err == nil && a.Inline() > 0 {
				inline++
			}
		}
		require.Positive(t, inline)
	})
}

// stepSmall does one random operation on a small file, and returns its bytes.
func stepSmall(t *testing.T, c *cluster, rng *rand.Rand, h *client.Handle, want []byte) []byte {
	t.Helper()
	p := bytesOf(rng.Uint64(), 1+rng.IntN(6000))
	switch k := rng.IntN(12); {
	case k < 5:
		off := rng.IntN(len(want) + 100)
		if rng.IntN(3) == 0 {
			off = 0
		}
		writeAt(t, c, h, p, int64(off))
		want = append(want, make([]byte, max(off+len(p)-len(want), 0))...)
		copy(want[off:], p)
	case k == 5:
		_, n, err := h.Append(c.ctx, p)
		require.NoError(t, err)
		require.Equal(t, len(p), n)
		want = append(want, p...)
	case k < 8:
		size := rng.IntN(len(want)*5/4 + 10)
		if rng.IntN(2) == 0 || len(want) > 40_000 {
			size = 0
		}
		require.NoError(t, h.Truncate(c.ctx, int64(size)))
		want = append(want[:min(size, len(want))], make([]byte, max(size-len(want), 0))...)
	case k == 8:
		require.NoError(t, h.Sync(c.ctx))
	default:
		got := make([]byte, len(want)+1)
		n, err := h.ReadAt(c.ctx, got, 0)
		require.ErrorIs(t, err, io.EOF)
		require.True(t, bytes.Equal(want, got[:n]), "%d bytes, want %d", n, len(want))
	}
	return want
}
