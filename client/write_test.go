package client_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// commits records the commits that the client sends.
func commits(c *cluster) (list func() []*wire.Commit) {
	var mu sync.Mutex
	var all []*wire.Commit
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if op := req.GetCommit(); op != nil {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, op)
		}
		return nil, nil
	})
	return func() []*wire.Commit {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// A file of many stripes is committed in several entries, in order, and visible only after the
// last.
func TestManyCommits(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.ChunkBytes = 4096
		cl := c.dial("c1", cfg)
		defer cl.Close()
		list := commits(c)
		data := bytesOf(1, 300*4*4096+5)
		f, err := cl.Create(c.ctx, "/f", client.CreateOptions{})
		require.NoError(t, err)
		for i := 0; i < len(data); i += 50_000 {
			_, err := f.Write(data[i:min(i+50_000, len(data))])
			require.NoError(t, err)
			_, err = cl.Stat(c.ctx, "/f")
			require.ErrorIs(t, err, moraine.NotFound)
		}
		res, err := f.Commit(c.ctx)
		require.NoError(t, err)
		require.Equal(t, 2, res.Protects)
		require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
		all := list()
		require.Greater(t, len(all), 3)
		stripes := 0
		for i, op := range all {
			require.Equal(t, i == len(all)-1, op.Final)
			require.Equal(t, i == len(all)-1, op.Link != nil)
			stripes += len(op.Stripes)
		}
		require.Equal(t, 301, stripes)
	})
}

// A file of more extents than one answer of the service contains.
func TestManyExtents(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cfg := config()
		cfg.ChunkBytes, cfg.Scheme = 4096, moraine.Copies(1)
		cl := c.dial("c1", cfg)
		defer cl.Close()
		data := bytesOf(1, 1250*4096+5)
		write(t, c, cl, "/f", data, 1<<20, false)
		require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		for _, off := range []int{0, 999 * 4096, 1000*4096 - 7, 1000 * 4096, 1250 * 4096, 5_000_001} {
			got := make([]byte, min(10_000, len(data)-off))
			require.NoError(t, r.ReadRange(c.ctx, got, int64(off)))
			require.True(t, bytes.Equal(data[off:off+len(got)], got))
		}
	})
}

// Aborting a file with earlier commits frees its space.
func TestAbortAfterCommits(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.ChunkBytes = 4096
		cl := c.dial("c1", cfg)
		defer cl.Close()
		f, err := cl.CreateUnlinked(c.ctx, 0, client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(1, 200*4*4096))
		require.NoError(t, err)
		require.NoError(t, f.Flush(c.ctx))
		a, err := cl.Inodes().Stat(c.ctx, f.Inode())
		require.NoError(t, err)
		require.Positive(t, a.Size())
		f.Abort()
		time.Sleep(time.Second)
		a, err = cl.Inodes().Stat(c.ctx, f.Inode())
		require.NoError(t, err)
		require.Zero(t, a.Stored())
	})
}

// The layout follows the format: full stripes of k chunks, a long remainder as a shorter
// stripe, a short one as copies.
func TestLayout(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", client.Config{Metadata: config().Metadata})
		defer cl.Close()
		const stripe = 16 << 20
		for _, row := range []struct {
			size    int64
			schemes []string
			lengths []int64
		}{
			{1, nil, nil},
			{16<<10 + 1, []string{"x3"}, []int64{16<<10 + 1}},
			{512 << 10, []string{"x3"}, []int64{512 << 10}},
			{512<<10 + 1, []string{"4+2"}, []int64{512<<10 + 1}},
			{stripe, []string{"4+2"}, []int64{stripe}},
			{stripe + 100, []string{"4+2", "x3"}, []int64{stripe, 100}},
			{stripe + 1<<20, []string{"4+2", "4+2"}, []int64{stripe, 1 << 20}},
		} {
			data := bytesOf(1, int(row.size))
			write(t, c, cl, "/f", data, 1<<20, false)
			require.True(t, bytes.Equal(data, read(t, c, cl, "/f")))
			a, err := cl.Stat(c.ctx, "/f")
			require.NoError(t, err)
			resp, err := rawclient.Of(cl).Meta(c.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{
				Inode: uint64(a.Inode()), Limit: 1000}}})
			require.NoError(t, err)
			var schemes []string
			var lengths []int64
			for _, s := range resp.GetExtents().Stripes {
				scheme := moraine.Scheme{K: uint8(s.Scheme.K), M: uint8(s.Scheme.M)}
				schemes, lengths = append(schemes, scheme.String()), append(lengths, int64(s.Length))
				hosts := map[uint32]bool{}
				for i, ch := range s.Chunks {
					hosts[ch.Device] = true
					h := c.hostOf(ch.Device)
					held := h.Chunk(moraine.ChunkID{Stripe: moraine.StripeID(s.Id), Index: uint8(i)})
					require.NotNil(t, held)
					require.Equal(t, ch.Crc, held.CRC)
					require.EqualValues(t, scheme.ChunkLen(int64(s.Length)), len(held.Data))
					require.Equal(t, uint32(moraine.NVMe), ch.Level)
				}
				require.Len(t, hosts, scheme.Chunks())
			}
			require.Equal(t, row.schemes, schemes)
			require.Equal(t, row.lengths, lengths)
		}
	})
}

func (c *cluster) hostOf(device uint32) *memcluster.Host {
	for _, h := range c.Hosts {
		if h.Device() == device {
			return h
		}
	}
	return nil
}

// One goroutine that writes many files in turn, more than the memory has stripes for, makes
// progress: the client sends idle stripes short.
func TestManyOpenFilesInLittleMemory(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.ChunkBytes, cfg.MemoryBytes = 1<<20, 16<<20
		cl := c.dial("c1", cfg)
		defer cl.Close()
		const files = 20
		var open []*client.File
		data := make([][]byte, files)
		for i := range files {
			f, err := cl.Create(c.ctx, fmt.Sprintf("/f%d", i), client.CreateOptions{})
			require.NoError(t, err)
			open = append(open, f)
		}
		for round := range 12 {
			for i, f := range open {
				p := bytesOf(uint64(round*files+i), 150_000)
				data[i] = append(data[i], p...)
				_, err := f.Write(p)
				require.NoError(t, err)
				require.LessOrEqual(t, client.Held(cl), cfg.MemoryBytes)
			}
		}
		for i, f := range open {
			_, err := f.Commit(c.ctx)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data[i], read(t, c, cl, fmt.Sprintf("/f%d", i))))
		}
		require.Positive(t, cl.Stats().StripesCutShort)
	})
}

// The same from many goroutines, each of which pauses for a while.
func TestManyWritersInLittleMemory(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.ChunkBytes, cfg.MemoryBytes = 1<<20, 16<<20
		cl := c.dial("c1", cfg)
		defer cl.Close()
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				data := bytesOf(uint64(i), 5_000_000)
				f, err := cl.Create(c.ctx, fmt.Sprintf("/f%d", i), client.CreateOptions{})
				require.NoError(t, err)
				for n := 0; n < len(data); n += 700_000 {
					_, err := f.Write(data[n:min(n+700_000, len(data))])
					require.NoError(t, err)
					time.Sleep(time.Duration(i) * time.Second)
				}
				_, err = f.Commit(c.ctx)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, read(t, c, cl, fmt.Sprintf("/f%d", i))))
			})
		}
		wg.Wait()
	})
}

// A commit at level memory records the boot epoch under which its copies count.
func TestMemoryLevel(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.Level = moraine.Memory
		cl := c.dial("c1", cfg)
		defer cl.Close()
		list := commits(c)
		res := write(t, c, cl, "/f", bytesOf(1, 500_000), 1<<30, false)
		require.EqualValues(t, moraine.Memory, res.Attr.Level())
		for _, s := range list()[0].Stripes {
			for _, ch := range s.Chunks {
				require.EqualValues(t, moraine.Memory, ch.Level)
				require.Equal(t, c.hostOf(ch.Device).Epoch(), ch.Epoch)
			}
		}
	})
}

// A server that stores a chunk below the requested level has not stored it.
func TestLevelNotReached(t *testing.T) {
	inCluster(t, 8, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		weak := c.Hosts[1] // it would get a chunk of each stripe
		weak.Break(memcluster.Faults{Weak: true})
		list := commits(c)
		write(t, c, cl, "/f", bytesOf(1, 500_000), 1<<30, false)
		for _, s := range list()[0].Stripes {
			for _, ch := range s.Chunks {
				require.NotEqual(t, weak.Device(), ch.Device)
			}
		}
		require.NotZero(t, weak.Counts().Puts)
	})
}

// The client requests grants for many stripes at once. It ends them once they are used up, or a
// stripe put under them was dropped.
func TestGrants(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		var granted, over atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch {
			case req.GetGrant() != nil:
				granted.Add(1)
			case req.GetEndGrant() != nil:
				over.Add(1)
			}
			return nil, nil
		})
		for i := range 100 {
			write(t, c, cl, fmt.Sprintf("/f%d", i), bytesOf(1, 1000), 1<<30, false)
		}
		time.Sleep(time.Second)
		require.LessOrEqual(t, granted.Load(), int64(6))
		require.GreaterOrEqual(t, over.Load(), granted.Load()-2)

		f, err := cl.Create(c.ctx, "/g", client.CreateOptions{})
		require.NoError(t, err)
		_, err = f.Write(bytesOf(1, 1000))
		require.NoError(t, err)
		require.NoError(t, f.Flush(c.ctx))
		before := over.Load()
		f.Abort()
		time.Sleep(time.Second)
		require.Greater(t, over.Load(), before)

		time.Sleep(2 * time.Minute)
		require.Equal(t, granted.Load(), over.Load(), "idle grants are ended")
	})
}

// The client uses a device again later that was slow or failed once.
func TestDeviceIsForgiven(t *testing.T) {
	inCluster(t, 7, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		c.Hosts[0].Before(damageIO)
		write(t, c, cl, "/a", bytesOf(1, 3_000_000), 1<<30, false)
		c.Hosts[0].Before(nil)
		time.Sleep(5 * time.Minute)
		before := c.Hosts[0].Count()
		write(t, c, cl, "/b", bytesOf(1, 3_000_000), 1<<30, false)
		require.Greater(t, c.Hosts[0].Count(), before)
	})
}
