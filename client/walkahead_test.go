package client_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// treeOf makes 5 directories with 5 directories each, which have 3 files each, and returns how many
// directories there are.
func (c *cluster) treeOf(cl *client.Client) (dirs int) {
	for i := range 5 {
		for j := range 5 {
			dir := fmt.Sprintf("tree/d%d/e%d", i, j)
			_, err := cl.MkdirAll(c.ctx, dir, 0o755)
			require.NoError(c.t, err)
			at, err := cl.Stat(c.ctx, dir)
			require.NoError(c.t, err)
			for k := range 3 {
				_, err := cl.Inodes().CreateEmpty(c.ctx, at.Inode(), fmt.Sprint("f", k), 0o644)
				require.NoError(c.t, err)
			}
		}
	}
	return 1 + 5 + 25
}

// A program that walks a tree waits for few listings: the client has listed most directories before
// the program comes to them, each once, and not far ahead.
func TestAWalkIsListedAhead(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker := c.dial("c1", config())
		defer maker.Close()
		dirs := c.treeOf(maker)
		cl := c.dial("c2", config())
		defer cl.Close()
		synctest.Wait()
		var mu sync.Mutex
		requested, requests, most := map[moraine.InodeID]int{}, 0, 0
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if r := req.GetReadDir(); r != nil {
				mu.Lock()
				defer mu.Unlock()
				for _, inode := range append([]uint64{r.Inode}, r.Also...) {
					requested[moraine.InodeID(inode)]++
				}
				requests++
			}
			return nil, nil
		})
		listed, waited := 0, 0
		require.NoError(t, cl.Walk(c.ctx, "tree", func(_ string, a client.Attr) error {
			synctest.Wait() // what is listed ahead has ended
			mu.Lock()
			defer mu.Unlock()
			if a.IsDir() {
				if requested[a.Inode()] == 0 {
					waited++
				}
				listed++
			}
			most = max(most, len(requested)-listed)
			return nil
		}))
		require.Equal(t, dirs, listed)
		require.LessOrEqual(t, waited, 3)
		require.LessOrEqual(t, most, 32)
		require.Less(t, requests, dirs/2, "most directories come with others")
		require.Len(t, requested, dirs)
		for inode, times := range requested {
			require.Equal(t, 1, times, "%v", inode)
		}
	})
}

// What another client changes in a directory that was listed ahead is seen, as in any listing.
func TestAWalkSeesChangesOfWhatWasListedAhead(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker := c.dial("c1", config())
		defer maker.Close()
		c.treeOf(maker)
		cl := c.dial("c2", config())
		defer cl.Close()
		synctest.Wait()
		var seen []string
		require.NoError(t, cl.Walk(c.ctx, "tree", func(at string, a client.Attr) error {
			seen = append(seen, at)
			if at == "/tree/d2/e0/f0" {
				synctest.Wait() // the next ones are listed
				require.NoError(t, maker.Remove(c.ctx, "tree/d2/e1/f1"))
				_, err := maker.Symlink(c.ctx, "f0", "tree/d2/e2/new")
				require.NoError(t, err)
				require.NoError(t, maker.Rename(c.ctx, "tree/d3/e1", "tree/d4/moved", client.RenameOptions{}))
			}
			return nil
		}))
		all := strings.Join(seen, " ") + " "
		require.NotContains(t, all, "/tree/d2/e1/f1 ")
		require.Contains(t, all, "/tree/d2/e1/f2 ")
		require.Contains(t, all, "/tree/d2/e2/new ")
		require.NotContains(t, all, "/tree/d3/e1 ", "d3 was only listed ahead")
		require.Contains(t, all, "/tree/d4/moved/f1 ")
		require.Contains(t, all, "/tree/d4/e4/f2 ")
	})
}

// Listings that are no walk list nothing ahead, and those that only look like one at most one
// directory each.
func TestListingsThatAreNoWalk(t *testing.T) {
	inCluster(t, 1, func(c *cluster) {
		maker := c.dial("c1", config())
		defer maker.Close()
		c.treeOf(maker)
		cl := c.dial("c2", config())
		defer cl.Close()
		inode := func(p string) moraine.InodeID {
			a, err := maker.Stat(c.ctx, p)
			require.NoError(t, err)
			return a.Inode()
		}
		list := func(dir moraine.InodeID) {
			for _, err := range cl.Inodes().ReadDir(c.ctx, dir) {
				require.NoError(t, err)
			}
			synctest.Wait()
		}
		n := c.countNames()
		for _, p := range []string{"tree/d0/e0", "tree/d1/e3", "tree/d2", "tree/d0/e1"} {
			list(inode(p))
		}
		require.EqualValues(t, 4, n.pages.Load(), "their parents were not listed")

		list(inode("tree"))
		require.EqualValues(t, 5, n.pages.Load())
		watched := inode("tree/d4")
		for i := range 20 { // others change what the program does not look at
			for j := range 5 {
				_, err := maker.Symlink(c.ctx, "x", fmt.Sprintf("tree/d4/e%d/new%d", j, i))
				require.NoError(t, err)
			}
			time.Sleep(10 * time.Second)
			list(watched)
			list(inode("tree/d3"))
		}
		require.LessOrEqual(t, n.pages.Load(), int64(5+2+40))
	})
}
