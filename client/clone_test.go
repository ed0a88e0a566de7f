package client_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

func (c *cluster) inode(cl *client.Client, path string) moraine.InodeID {
	c.t.Helper()
	a, err := cl.Stat(c.ctx, path)
	require.NoError(c.t, err)
	return a.Inode()
}

// puts counts the chunks that hosts have stored.
func (c *cluster) puts() int {
	n := 0
	for _, h := range c.Hosts {
		n += h.Counts().Puts
	}
	return n
}

// A clone has the bytes of its source at that moment, including unflushed ones, and no byte
// moves. Writing to one does not change the other.
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
		require.EqualValues(t, 0o600, a.Mode())
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

// Thousands of ranges become one file. A job of the service does it, or, above 10,000 ranges,
// several requests. The name appears with the last request.
// Lost replies change nothing.
func TestConcatOfManyRanges(t *testing.T) {
	t.Run("by a job", func(t *testing.T) { concatMany(t, testseed.Of(1_000, 10_000), false) })
	t.Run("step by step", func(t *testing.T) { concatMany(t, 10_001, true) })
}

func concatMany(t *testing.T, ranges int, steply bool) {
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
		for i := len(srcs); i < ranges; i++ {
			k := i % len(parts)
			off := i % 30
			srcs = append(srcs, client.InodeRange{Inode: srcs[k].Inode, Offset: int64(off), Length: 20})
			want = append(want, parts[k][off:off+20]...)
		}
		steps, jobs := 0, map[uint64]int{}
		lost := loseReply(1<<30, func(req *wire.MetaRequest) bool { return false })
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if op := req.GetClone(); op != nil {
				if steps++; steps%5 == 0 {
					lost = loseReply(1, func(*wire.MetaRequest) bool { return true })
				}
				if op.Link == nil {
					return lost(req)
				}
			}
			if req.GetConcat() != nil {
				if jobs[req.Number]++; jobs[req.Number] < 3 {
					return loseReply(1, func(*wire.MetaRequest) bool { return true })(req)
				}
			}
			return nil, nil
		})
		_, err := cl.Concat(c.ctx, "/all", srcs, client.CreateOptions{})
		require.NoError(t, err)
		c.OnMeta(nil)
		if steply {
			require.Greater(t, steps, 10)
			require.Empty(t, jobs)
		} else {
			require.Zero(t, steps)
			require.Len(t, jobs, 1, "one number, whatever was lost")
			made := 0
			for j, err := range cl.Jobs().List(c.ctx, true) {
				require.NoError(t, err)
				if j.Kind == client.JobConcat {
					made++
				}
			}
			require.Equal(t, 1, made, "and one job")
		}
		require.True(t, bytes.Equal(want, read(t, c, cl, "/all")))
	})
}

// The log entry in which the file appears also removes its parts, with a job or without. If the
// file cannot appear the parts stay.
func TestConcatConsumesParts(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		for _, ranges := range []int{3, 700} {
			_, err := cl.Mkdir(c.ctx, "/parts", 0o755)
			require.NoError(t, err)
			write(t, c, cl, "/parts/p", bytesOf(1, 5000), 1<<30, false)
			a, err := cl.Stat(c.ctx, "/parts/p")
			require.NoError(t, err)
			dir := c.inode(cl, "/parts")
			var srcs []client.InodeRange
			for range ranges {
				srcs = append(srcs, client.InodeRange{Inode: a.Inode(), Generation: a.Generation(), Length: 5000})
			}
			name := fmt.Sprintf("/whole%d", ranges)
			write(t, c, cl, name, bytesOf(2, 10), 1<<30, false)
			_, _, err = cl.ConcatParts(c.ctx, name, srcs, dir, client.CreateOptions{})
			require.ErrorIs(t, err, moraine.Exists)
			changed := append(slices.Clone(srcs), client.InodeRange{Inode: a.Inode(), Generation: moraine.Generation(a.Generation() + 1)})
			_, _, err = cl.ConcatParts(c.ctx, name, changed, dir, client.CreateOptions{Replace: true})
			require.ErrorIs(t, err, moraine.Stale)
			require.Equal(t, dir, c.inode(cl, "/parts"))
			require.Equal(t, bytesOf(2, 10), read(t, c, cl, name))
			made, consumed, err := cl.ConcatParts(c.ctx, name, srcs, dir, client.CreateOptions{Replace: true})
			require.NoError(t, err)
			require.True(t, consumed)
			require.EqualValues(t, 5000*ranges, made.Size())
			require.Equal(t, bytes.Repeat(bytesOf(1, 5000), ranges), read(t, c, cl, name))
			_, err = cl.Stat(c.ctx, "/parts")
			require.ErrorIs(t, err, moraine.NotFound)
			_, _, err = cl.ConcatParts(c.ctx, name, srcs, dir, client.CreateOptions{Replace: true})
			require.ErrorIs(t, err, moraine.NotFound, "the parts went with the first")
		}
	})
}

// If the service has forgotten an ended job, the file still exists.
func TestConcatWhoseJobIsForgotten(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/p", bytesOf(1, 5000), 1<<30, false)
		srcs := make([]client.InodeRange, 700)
		for i := range srcs {
			srcs[i] = client.InodeRange{Inode: c.inode(cl, "/p")}
		}
		forgot := 0
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetListJobs() == nil {
				return nil, nil
			}
			return func(resp *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				if jobs := resp.GetJobs().GetJobs(); len(jobs) == 1 && jobs[0].State == wire.JobState_JOB_STATE_DONE {
					forgot++
					return nil, errKind(moraine.NotFound)
				}
				return resp, err
			}, nil
		})
		a, err := cl.Concat(c.ctx, "/all", srcs, client.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, 1, forgot)
		require.EqualValues(t, 700*5000, a.Size())
		require.Equal(t, a.Inode(), c.inode(cl, "/all"))
	})
}

// A concatenation that fails in the middle leaves no name, and its space is freed.
func TestConcatFailsWhole(t *testing.T) {
	inCluster(t, 6, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		write(t, c, cl, "/f", bytesOf(1, 5000), 1<<30, false)
		a, err := cl.Stat(c.ctx, "/f")
		require.NoError(t, err)
		var srcs []client.InodeRange
		for range 600 {
			srcs = append(srcs, client.InodeRange{Inode: a.Inode(), Length: 10})
		}
		srcs = append(srcs, client.InodeRange{Inode: a.Inode(), Generation: moraine.Generation(a.Generation() + 1)})
		_, err = cl.Concat(c.ctx, "/all", srcs, client.CreateOptions{})
		require.ErrorIs(t, err, moraine.Stale)
		_, err = cl.Stat(c.ctx, "/all")
		require.ErrorIs(t, err, moraine.NotFound)
		empty, err := cl.Concat(c.ctx, "/empty", nil, client.CreateOptions{})
		require.NoError(t, err)
		require.Zero(t, empty.Size())
	})
}
