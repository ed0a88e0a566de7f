package client_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// nameRequests counts the requests about names that clients send from now on.
type nameRequests struct{ walks, pages atomic.Int64 }

func (c *cluster) countNames() *nameRequests {
	n := &nameRequests{}
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		switch {
		case req.GetWalk() != nil:
			n.walks.Add(1)
		case req.GetReadDir() != nil:
			n.pages.Add(1)
		}
		return nil, nil
	})
	return n
}

// directoryOf makes a directory with files f0, f1 and so on.
func (c *cluster) directoryOf(cl *client.Client, files int) moraine.InodeID {
	dir, err := cl.Inodes().Mkdir(c.ctx, cl.Root(), "d", client.NodeOptions{Mode: 0o755})
	require.NoError(c.t, err)
	for i := range files {
		_, err := cl.Inodes().CreateEmpty(c.ctx, dir.Inode(), fmt.Sprint("f", i), 0o644)
		require.NoError(c.t, err)
	}
	return dir.Inode()
}

// A client that looks up many names of a directory lists it: most look-ups need no request. What
// another client changes then is seen at once, like any name under a lease.
func TestManyLookupsListTheDirectory(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker := c.dial("c1", config())
		defer maker.Close()
		const files = 500
		dir := c.directoryOf(maker, files)
		cl := c.dial("c2", config())
		defer cl.Close()
		synctest.Wait()
		n := c.countNames()
		for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(files) {
			a, err := cl.Inodes().Lookup(c.ctx, dir, fmt.Sprint("f", i))
			require.NoError(t, err)
			require.EqualValues(t, 1, a.Nlink())
			synctest.Wait() // the listing has ended, or waits for more look-ups
		}
		require.LessOrEqual(t, n.walks.Load(), int64(8))
		require.LessOrEqual(t, n.pages.Load(), int64(3))
		_, err := cl.Inodes().Lookup(c.ctx, dir, "none")
		require.ErrorIs(t, err, moraine.NotFound)
		require.LessOrEqual(t, n.walks.Load(), int64(8), "the listing also says what is missing")

		_, err = maker.Inodes().Remove(c.ctx, dir, "f7", client.RemoveOptions{})
		require.NoError(t, err)
		_, err = cl.Inodes().Lookup(c.ctx, dir, "f7")
		require.ErrorIs(t, err, moraine.NotFound)
		_, err = maker.Inodes().CreateEmpty(c.ctx, dir, "none", 0o600)
		require.NoError(t, err)
		_, err = cl.Inodes().Lookup(c.ctx, dir, "none")
		require.NoError(t, err)
	})
}

// A few look-ups in a large directory list only a part of it, in proportion.
func TestFewLookupsListLittle(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker := c.dial("c1", config())
		defer maker.Close()
		dir := c.directoryOf(maker, 600)
		cl := c.dial("c2", config())
		defer cl.Close()
		synctest.Wait()
		n := c.countNames()
		for i := range 3 {
			_, err := cl.Inodes().Lookup(c.ctx, dir, fmt.Sprint("f", i))
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Zero(t, n.pages.Load())
		_, err := cl.Inodes().Lookup(c.ctx, dir, "f3")
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 1, n.pages.Load(), "four look-ups pay for one page")
	})
}

// Who makes files looks each name up before. That lists nothing: each change would end the listing.
func TestADirectoryThatChangesIsNotListed(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		cl := c.dial("c1", config())
		defer cl.Close()
		dir := c.directoryOf(cl, 0)
		synctest.Wait()
		n := c.countNames()
		for i := range 50 {
			name := fmt.Sprint("g", i)
			_, err := cl.Inodes().Lookup(c.ctx, dir, name)
			require.ErrorIs(t, err, moraine.NotFound)
			_, err = cl.Inodes().CreateEmpty(c.ctx, dir, name, 0o644)
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Zero(t, n.pages.Load())
	})
}
