package client_test

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport/wire"
)

// openNew makes an empty file and opens it.
func openNew(t *testing.T, c *cluster, cl *client.Client, name string) *client.Handle {
	t.Helper()
	a, err := cl.Inodes().Create(c.ctx, cl.Root(), name, client.NodeOptions{Mode: 0o644, Exclusive: true})
	require.NoError(t, err)
	h, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(t, err)
	return h
}

func writeAt(t *testing.T, c *cluster, h *client.Handle, p []byte, off int64) {
	t.Helper()
	n, err := h.WriteAt(c.ctx, p, off)
	require.NoError(t, err)
	require.Equal(t, len(p), n)
}

// requireContent compares all that the handle reads with want.
func requireContent(t *testing.T, c *cluster, h *client.Handle, want []byte) {
	t.Helper()
	require.EqualValues(t, len(want), h.Size())
	got := make([]byte, len(want)+10)
	n, err := h.ReadAt(c.ctx, got, 0)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, len(want), n)
	require.True(t, bytes.Equal(want, got[:n]), "wrong bytes")
}

// A handle sees its own writes wherever the bytes are: in memory, being sent, on chunkservers
// and not committed, committed. Other clients see them after a flush.
func TestHandleReadsItsOwnWrites(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl, other := c.dial("c1", config()), c.dial("c2", config())
		defer cl.Close()
		defer other.Close()
		h := openNew(t, c, cl, "f")
		want := bytesOf(1, 2_000_000)
		for off := 0; off < len(want); off += 200_000 {
			writeAt(t, c, h, want[off:off+200_000], int64(off))
			requireContent(t, c, h, want[:off+200_000])
		}
		copy(want[1_000_000:], bytesOf(2, 500_000))
		writeAt(t, c, h, want[1_000_000:1_500_000], 1_000_000)
		requireContent(t, c, h, want)
		require.NoError(t, h.Flush(c.ctx))
		requireContent(t, c, h, want)
		require.True(t, bytes.Equal(want, read(t, c, other, "/f")))
		require.NoError(t, h.Close(c.ctx))
		_, err := h.WriteAt(c.ctx, want, 0)
		require.ErrorIs(t, err, moraine.InvalidArgument)
	})
}

// Writes past the end leave holes. A truncation drops bytes past it, committed or not; they
// read as zeros afterwards.
func TestHandleHolesAndTruncation(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		for name, settle := range map[string]func(*client.Handle){
			"in memory": func(*client.Handle) {},
			"committed": func(h *client.Handle) { require.NoError(t, h.Flush(c.ctx)) },
		} {
			h := openNew(t, c, cl, name)
			want := make([]byte, 900_000)
			copy(want[400_000:], bytesOf(1, 500_000))
			writeAt(t, c, h, want[400_000:], 400_000)
			settle(h)
			requireContent(t, c, h, want)
			require.NoError(t, h.Truncate(c.ctx, 600_000))
			requireContent(t, c, h, want[:600_000])
			require.NoError(t, h.Truncate(c.ctx, 800_000))
			clear(want[600_000:])
			requireContent(t, c, h, want[:800_000])
			writeAt(t, c, h, []byte("end"), 850_000)
			copy(want[850_000:], "end")
			settle(h)
			requireContent(t, c, h, want[:850_003])
			require.NoError(t, h.Close(c.ctx))
			require.True(t, bytes.Equal(want[:850_003], read(t, c, cl, "/"+name)))
		}
	})
}

// The appends of two clients follow each other, each piece whole.
func TestHandleAppends(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		one, two := c.dial("c1", config()), c.dial("c2", config())
		defer one.Close()
		defer two.Close()
		h := openNew(t, c, one, "log")
		g, err := two.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		writeAt(t, c, h, []byte("head"), 0)
		require.NoError(t, h.Flush(c.ctx))
		var mu sync.Mutex
		var wg sync.WaitGroup
		want := make([]byte, 4+20*100_000)
		copy(want, "head")
		for i, h := range []*client.Handle{h, g, h, g} {
			wg.Go(func() {
				for k := range 5 {
					p := bytesOf(uint64(100*i+k), 100_000)
					off, n, err := h.Append(c.ctx, p)
					require.NoError(t, err)
					require.Equal(t, len(p), n)
					mu.Lock()
					copy(want[off:], p)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		require.NoError(t, h.Refresh(c.ctx))
		requireContent(t, c, h, want)
		big := bytesOf(7, 1_000_000) // several stripes
		off, n, err := g.Append(c.ctx, big)
		require.NoError(t, err)
		require.Equal(t, len(big), n)
		require.EqualValues(t, len(want), off)
		require.NoError(t, h.Close(c.ctx))
		require.NoError(t, g.Close(c.ctx))
		require.True(t, bytes.Equal(append(want, big...), read(t, c, one, "/log")))
	})
}

// All handles of a client on one inode see each other's writes at once, and the same size.
// Another client sees them when it opens the file after a close.
func TestHandleCloseToOpen(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		one, two := c.dial("c1", config()), c.dial("c2", config())
		defer one.Close()
		defer two.Close()
		h := openNew(t, c, one, "f")
		g, err := one.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		data := bytesOf(1, 700_000)
		writeAt(t, c, h, data, 0)
		requireContent(t, c, g, data)
		require.EqualValues(t, len(data), g.Attr().Size())
		far, err := two.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		require.Zero(t, far.Size())
		require.NoError(t, h.Close(c.ctx))
		again, err := two.Inodes().OpenHandle(c.ctx, g.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		requireContent(t, c, again, data)
		// A reader of the earlier content continues: never a mixture.
		next := bytesOf(2, 700_000)
		writeAt(t, c, g, next, 0)
		require.NoError(t, g.Close(c.ctx))
		p := make([]byte, len(data))
		_, err = again.ReadAt(c.ctx, p, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, p) || bytes.Equal(next, p))
		require.NoError(t, again.Refresh(c.ctx))
		requireContent(t, c, far, next)
		require.NoError(t, far.Close(c.ctx))
		require.NoError(t, again.Close(c.ctx))
	})
}

// The client commits unflushed bytes a few seconds later.
func TestHandleCommitsByItself(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		one, two := c.dial("c1", config()), c.dial("c2", config())
		defer one.Close()
		defer two.Close()
		h := openNew(t, c, one, "f")
		data := bytesOf(1, 700_000)
		writeAt(t, c, h, data, 0)
		time.Sleep(5 * time.Second)
		require.True(t, bytes.Equal(data, read(t, c, two, "/f")))
		require.NoError(t, h.Close(c.ctx))
	})
}

// A time that is set after a write stays, although the client sends the bytes later.
func TestHandleKeepsATimeThatIsSet(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		h := openNew(t, c, cl, "f")
		writeAt(t, c, h, bytesOf(1, 1000), 0)
		_, err := cl.Inodes().SetAttr(c.ctx, h.Inode(), client.SetAttr{ModTime: new(time.Unix(0, 12345))})
		require.NoError(t, err)
		require.NoError(t, h.Close(c.ctx))
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(t, err)
		require.EqualValues(t, 12345, a.ModTime().UnixNano())
		require.EqualValues(t, 1000, a.Size())
	})
}

// Each handle returns the error of a failed background write once, and the earlier bytes are
// intact.
func TestHandleErrorsAreReportedOnce(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		h := openNew(t, c, cl, "f")
		g, err := cl.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		old := bytesOf(1, 300_000)
		writeAt(t, c, h, old, 0)
		require.NoError(t, h.Flush(c.ctx))
		for _, host := range c.Hosts {
			host.Before(func(_ context.Context, req any) error {
				if _, put := req.(*wire.PutChunk); put {
					return errKind(moraine.TooLarge) // an error for which the client tries no other device
				}
				return nil
			})
		}
		writeAt(t, c, h, bytesOf(2, 1000), 0)
		time.Sleep(10 * time.Second)
		require.ErrorIs(t, g.Flush(c.ctx), moraine.TooLarge)
		require.NoError(t, g.Flush(c.ctx))
		require.ErrorIs(t, h.Sync(c.ctx), moraine.TooLarge)
		requireContent(t, c, h, old)
		for _, host := range c.Hosts {
			host.Before(nil)
		}
		writeAt(t, c, h, bytesOf(3, 1000), 0)
		copy(old, bytesOf(3, 1000))
		require.NoError(t, g.Close(c.ctx))
		require.NoError(t, h.Close(c.ctx))
		require.True(t, bytes.Equal(old, read(t, c, cl, "/f")))
	})
}

// When a session expires, bytes that a handle sent and did not commit are lost, and it returns
// the error once. It sends the bytes in its memory again, and continues to work.
func TestHandleAcrossSessionExpiry(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		h := openNew(t, c, cl, "f")
		old := bytesOf(1, 600_000)
		writeAt(t, c, h, old, 0)
		require.NoError(t, h.Flush(c.ctx))

		// On chunkservers, not committed: the client cannot reach the service for the commit.
		put := bytesOf(2, 600_000)
		writeAt(t, c, h, put, 0)
		cut := func() {
			for _, m := range memcluster.Servers() {
				c.Net.Partition("c1", m)
			}
			for _, h := range c.Hosts {
				c.Net.Partition("c1", h.ID)
			}
		}
		before := c.puts()
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetCommit() != nil {
				return nil, errKind(moraine.Unavailable)
			}
			return nil, nil
		})
		time.Sleep(5 * time.Second)
		require.Greater(t, c.puts(), before)
		requireContent(t, c, h, put)
		first := cl.Session()
		cut()
		held := bytesOf(3, 1000)
		writeAt(t, c, h, held, 700_000) // in memory: the client reaches no server
		time.Sleep(100 * time.Second)
		c.OnMeta(nil)
		c.Net.Heal()

		require.ErrorIs(t, h.Flush(c.ctx), moraine.IOError)
		require.NotEqual(t, first, cl.Session())
		require.NoError(t, h.Flush(c.ctx), "once")
		want := make([]byte, 701_000)
		copy(want, old)
		copy(want[700_000:], held)
		requireContent(t, c, h, want)
		next := bytesOf(4, 1000)
		writeAt(t, c, h, next, 5)
		copy(want[5:], next)
		require.NoError(t, h.Close(c.ctx))
		require.True(t, bytes.Equal(want, read(t, c, cl, "/f")))
	})
}

// Many handles share the client's memory: none waits for ever, and every byte arrives.
func TestHandlesShareLittleMemory(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cfg := config()
		cfg.MemoryBytes = 16 << 20
		cfg.ChunkBytes = 1 << 20
		cl := c.dial("c1", cfg)
		defer cl.Close()
		var wg sync.WaitGroup
		for i := range 12 {
			h := openNew(t, c, cl, string(rune('a'+i)))
			wg.Go(func() {
				want := bytesOf(uint64(i), 3_000_000)
				for _, off := range []int{2_000_000, 0, 1_000_000} { // runs at three places
					for k := 0; k < 1_000_000; k += 125_000 {
						writeAt(t, c, h, want[off+k:off+k+125_000], int64(off+k))
					}
				}
				if i%3 == 0 {
					off, _, err := h.Append(c.ctx, want[:2_000_000])
					require.NoError(t, err)
					require.EqualValues(t, len(want), off)
					want = append(want, want[:2_000_000]...)
				}
				requireContent(t, c, h, want)
				require.NoError(t, h.Close(c.ctx))
			})
		}
		wg.Wait()
	})
}

// A run of writes of any sizes becomes full stripes, and small writes all over a file share
// one.
func TestHandleMakesFullStripes(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config()) // a stripe has 4 chunks of 64 KiB
		defer cl.Close()
		h := openNew(t, c, cl, "f")
		before := c.puts()
		for off := 0; off < 8*256<<10; off += 8 << 10 { // pairs in reverse order
			at := off ^ 8<<10
			writeAt(t, c, h, bytesOf(uint64(at), 8<<10), int64(at))
		}
		require.NoError(t, h.Flush(c.ctx))
		require.Equal(t, 8*6, c.puts()-before)
		before = c.puts()
		for i := range 30 {
			writeAt(t, c, h, bytesOf(uint64(i), 700), int64(i*60_000+13))
		}
		require.NoError(t, h.Flush(c.ctx))
		require.LessOrEqual(t, c.puts()-before, 2*3, "two stripes of three copies at most")
		require.NoError(t, h.Close(c.ctx))
	})
}
