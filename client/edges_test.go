package client_test

import (
	"context"
	"io"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// TestWritesPastTheLargestFile: the client refuses a write past the largest file size at once,
// and concurrent writes are unaffected. The last byte of the largest file is readable.
func TestWritesPastTheLargestFile(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		h := openNew(t, c, cl, "f")
		data := bytesOf(1, 5000)
		writeAt(t, c, h, data, 0)
		for _, off := range []int64{moraine.MaxFileSize, moraine.MaxFileSize - 4999, 1<<63 - 1, 1<<63 - 5000} {
			_, err := h.WriteAt(c.ctx, data, off)
			require.ErrorIs(t, err, moraine.TooLarge, "at %d", off)
		}
		require.NoError(t, h.Flush(c.ctx))
		writeAt(t, c, h, data, moraine.MaxFileSize-5000)
		require.NoError(t, h.Close(c.ctx))
		h = reopen(t, c, cl, h)
		got := make([]byte, 5000)
		for _, off := range []int64{0, moraine.MaxFileSize - 5000} {
			_, err := h.ReadAt(c.ctx, got, off)
			require.NoError(t, err)
			require.Equal(t, data, got)
		}
		require.NoError(t, h.Close(c.ctx))
	})
}

func reopen(t *testing.T, c *cluster, cl *client.Client, h *client.Handle) *client.Handle {
	t.Helper()
	h, err := cl.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
	require.NoError(t, err)
	return h
}

// TestOpenWhileTheLastHandleCloses: a handle reads the bytes that another handle of the client
// wrote and closed during the opening.
func TestOpenWhileTheLastHandleCloses(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		first := openNew(t, c, cl, "f")
		writeAt(t, c, first, bytesOf(1, 5000), 0)
		require.NoError(t, first.Flush(c.ctx))
		arrived, hold := make(chan struct{}), make(chan struct{})
		seen := false
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetGetAttr().GetInode() != uint64(first.Inode()) || seen {
				return nil, nil
			}
			seen = true
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				close(arrived)
				<-hold
				return r, err
			}, nil
		})
		opened := make(chan *client.Handle)
		go func() {
			h, err := cl.Inodes().OpenHandle(context.WithoutCancel(c.ctx), first.Inode(), client.HandleOptions{})
			require.NoError(t, err)
			opened <- h
		}()
		<-arrived
		fresh := bytesOf(2, 6000)
		writeAt(t, c, first, fresh, 0)
		require.NoError(t, first.Close(c.ctx))
		time.Sleep(50 * time.Millisecond)
		close(hold)
		second := <-opened
		requireContent(t, c, second, fresh)
		require.NoError(t, second.Close(c.ctx))
	})
}

// TestRangesPastTheEndAreRefused: a range that ends past the file is an error, not zeros, even
// if its end exceeds every offset.
func TestRangesPastTheEndAreRefused(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		data := bytesOf(1, 5000)
		h := openNew(t, c, cl, "f")
		writeAt(t, c, h, data, 0)
		require.NoError(t, h.Close(c.ctx))
		r, err := cl.OpenFile(c.ctx, "/f")
		require.NoError(t, err)
		defer r.Close()
		p := make([]byte, 10)
		for _, off := range []int64{-1, 4991, 5000, math.MaxInt64 - 10, math.MaxInt64 - 9, math.MaxInt64} {
			require.ErrorIs(t, r.ReadRange(c.ctx, p, off), moraine.InvalidArgument, "%d", off)
			s, err := r.Section(c.ctx, off, 10)
			require.ErrorIs(t, err, moraine.InvalidArgument, "%d", off)
			require.Nil(t, s)
		}
		require.NoError(t, r.ReadRange(c.ctx, p, 4990))
		require.Equal(t, data[4990:], p)
		rest, err := io.ReadAll(r.NewRangeStream(c.ctx, 4000, math.MaxInt64))
		require.NoError(t, err)
		require.Equal(t, data[4000:], rest)
	})
}

// TestAppendsThatAreAbandoned: an append that its caller abandons leaves nothing, so that the
// caller can repeat it. If it is too late for that, the error says so.
func TestAppendsThatAreAbandoned(t *testing.T) {
	for name, size := range map[string]int{"small": 5000, "large": 200_000} {
		for _, where := range []string{"puts hang", "the commit hangs", "the commit before it hangs"} {
			t.Run(name+"/"+where, func(t *testing.T) {
				inCluster(t, 6, func(c *cluster) {
					cl := c.dial("c1", config())
					defer cl.Close()
					h := openNew(t, c, cl, "f")
					start, data := bytesOf(1, 5000), bytesOf(2, size)
					writeAt(t, c, h, start, 0)
					require.NoError(t, h.Flush(c.ctx))
					var hang atomic.Bool
					hang.Store(true)
					ctx, cancel := context.WithCancel(c.ctx)
					wait := func() {
						for hang.Load() {
							time.Sleep(10 * time.Millisecond)
						}
					}
					if where == "puts hang" {
						for _, host := range c.Hosts {
							onPuts(host, 0, func(context.Context, *wire.PutChunk) error { wait(); return nil })
						}
					} else {
						c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
							if req.GetCommit() != nil {
								wait()
							}
							return nil, nil
						})
					}
					if where == "the commit before it hangs" {
						writeAt(t, c, h, start[:1000], 0)
					}
					time.AfterFunc(500*time.Millisecond, cancel)
					_, n, err := h.Append(ctx, data)
					require.Error(t, err)
					require.Zero(t, n)
					hang.Store(false)
					want := append(append([]byte(nil), start...), data...)
					if where == "the commit hangs" {
						require.Equal(t, moraine.Timeout, moraine.KindOf(err), "%v", err)
					} else {
						require.Equal(t, moraine.Canceled, moraine.KindOf(err), "%v", err)
						_, _, err = h.Append(c.ctx, data) // the caller sees that nothing was written
						require.NoError(t, err)
					}
					require.NoError(t, h.Close(c.ctx))
					got := read(t, c, cl, "/f")
					require.Len(t, got, len(want))
					require.Equal(t, sum(want), sum(got))
				})
			})
		}
	}
}
