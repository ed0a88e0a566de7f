package client_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

func (c *cluster) inode(cl *client.Client, path string) moraine.InodeID {
	c.t.Helper()
	a, err := cl.Stat(c.ctx, path)
	require.NoError(c.t, err)
	return moraine.InodeID(a.Inode)
}

// puts counts the chunks that hosts have taken.
func (c *cluster) puts() int {
	n := 0
	for _, h := range c.hosts {
		h.mu.Lock()
		n += h.puts
		h.mu.Unlock()
	}
	return n
}

// A clone has the bytes of its source as it was, also those not flushed yet, and
// no byte moves; writing to one of them changes the other by nothing.
func TestCloneFile(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		h := openNew(t, c, cl, "src")
		data := bytesOf(1, 900_000)
		writeAt(t, c, h, data, 0)
		require.NoError(t, h.Flush(c.ctx))
		tail := bytesOf(2, 1000)
		writeAt(t, c, h, tail, 900_000)
		data = append(data, tail...)
		_, err := cl.CloneFile(c.ctx, h.Inode(), "/dst", client.CreateOptions{})
		require.NoError(t, err)
		before := c.puts()
		a, err := cl.CloneFile(c.ctx, h.Inode(), "/dst", client.CreateOptions{Replace: true, Mode: 0o600})
		require.NoError(t, err)
		require.Equal(t, before, c.puts(), "no byte moves")
		require.EqualValues(t, 0o600, a.Mode)
		writeAt(t, c, h, bytesOf(3, 500_000), 100_000)
		require.NoError(t, h.Close(c.ctx))
		require.True(t, bytes.Equal(data, read(t, c, cl, "/dst")))
		copy(data[100_000:], bytesOf(3, 500_000))
		require.True(t, bytes.Equal(data, read(t, c, cl, "/src")))
		_, err = cl.CloneFile(c.ctx, h.Inode(), "/dst", client.CreateOptions{})
		require.ErrorIs(t, err, moraine.Exists)
		_, err = cl.CloneFile(c.ctx, 12345, "/x", client.CreateOptions{})
		require.ErrorIs(t, err, moraine.NotFound)
	})
}

// Ten thousand ranges become one file, whose name appears with the last step;
// replies that are lost change nothing.
func TestConcatOfManyRanges(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		var srcs []client.InodeRange
		var want []byte
		parts := make([][]byte, 20)
		for i := range parts {
			name := fmt.Sprintf("/part%d", i)
			parts[i] = bytesOf(uint64(i), 60+7*i)
			write(t, c, cl, name, parts[i], 1<<30, false)
			srcs = append(srcs, client.InodeRange{Inode: c.inode(cl, name)})
			want = append(want, parts[i]...)
		}
		for i := len(srcs); i < 10_000; i++ {
			k := i % len(parts)
			off := i % 30
			srcs = append(srcs, client.InodeRange{Inode: srcs[k].Inode, Offset: int64(off), Length: 20})
			want = append(want, parts[k][off:off+20]...)
		}
		steps := 0
		lost := loseReply(1<<30, func(req *wire.MetaRequest) bool { return false })
		c.onMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if op := req.GetClone(); op != nil {
				if steps++; steps%5 == 0 {
					lost = loseReply(1, func(*wire.MetaRequest) bool { return true })
				}
				if op.Link == nil {
					return lost(req)
				}
			}
			return nil, nil
		})
		_, err := cl.Concat(c.ctx, "/all", srcs, client.CreateOptions{})
		require.NoError(t, err)
		c.onMeta(nil)
		require.Greater(t, steps, 10)
		require.True(t, bytes.Equal(want, read(t, c, cl, "/all")))
	})
}

// What fails half-way leaves no name, and its space is given back.
func TestConcatFailsWhole(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(1, 5000), 1<<30, false)
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(t, err)
		var srcs []client.InodeRange
		for range 600 {
			srcs = append(srcs, client.InodeRange{Inode: moraine.InodeID(a.Inode), Length: 10})
		}
		srcs = append(srcs, client.InodeRange{Inode: moraine.InodeID(a.Inode), Generation: moraine.Generation(a.Generation + 1)})
		_, err = cl.Concat(c.ctx, "/all", srcs, client.CreateOptions{})
		require.ErrorIs(t, err, moraine.Stale)
		_, err = cl.Stat(c.ctx, "/all")
		require.ErrorIs(t, err, moraine.NotFound)
		empty, err := cl.Concat(c.ctx, "/empty", nil, client.CreateOptions{})
		require.NoError(t, err)
		require.Zero(t, empty.Size)
	})
}
