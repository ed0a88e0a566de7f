package client_test

import (
	"context"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// TestWritesPastTheLargestFile: a write that no file can have is refused at once, and
// takes nothing with it that was written beside it. The last byte that a file can have
// is there.
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
	h, err := cl.OpenHandle(c.ctx, h.Inode(), client.HandleOptions{})
	require.NoError(t, err)
	return h
}

// TestOpenWhileTheLastHandleCloses: what was written and closed while another handle of
// the client was being opened is read through that one.
func TestOpenWhileTheLastHandleCloses(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		first := openNew(t, c, cl, "f")
		writeAt(t, c, first, bytesOf(1, 5000), 0)
		require.NoError(t, first.Flush(c.ctx))
		arrived, hold := make(chan struct{}), make(chan struct{})
		seen := false
		c.onMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
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
			h, err := cl.OpenHandle(context.WithoutCancel(c.ctx), first.Inode(), client.HandleOptions{})
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

// TestRangesPastTheEndAreRefused: a range that ends past the file is an error, and not
// zeros, also where its end is past every offset.
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
