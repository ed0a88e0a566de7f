package client_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// givenBack counts the directories that clients give back, and in how many requests.
type givenBack struct {
	mu       sync.Mutex
	dirs     map[uint64]bool
	requests int
}

func (g *givenBack) see(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
	op := req.GetEndDelegation()
	if op == nil {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests++
	for _, inode := range op.Inodes {
		g.dirs[inode] = true
	}
	return nil, nil
}

// A directory in which the client changes nothing for a while is given back. Then its names are lent to
// kernels as those of any other. One that the client changes stays delegated.
func TestAQuietDirectoryIsGivenBack(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a := c.dial("a", delegating())
		defer a.Close()
		in, loans := a.Inodes(), a.Inodes().Loans(func(moraine.InodeID) bool { return true })
		defer loans.End()
		var dirs [2]moraine.InodeID
		for i := range dirs {
			dir, err := a.Mkdir(c.ctx, fmt.Sprint("/dir", i), 0o755)
			require.NoError(t, err)
			dirs[i] = dir.Inode()
			c.delegate(a, dirs[i])
			makeFiles(c, a, dirs[i], 0, 1)
		}
		quiet, busy := dirs[0], dirs[1]
		lends := func(dir moraine.InodeID) bool {
			f, err := in.Lookup(c.ctx, dir, "f000000")
			require.NoError(t, err)
			entry, attr := loans.Entry(dir, "f000000", f)
			return entry > 0 && attr > 0
		}
		require.False(t, lends(quiet))
		given := &givenBack{dirs: map[uint64]bool{}}
		c.OnMeta(given.see)
		for i := range 10 {
			time.Sleep(time.Second)
			makeFiles(c, a, busy, 1+i, 2+i)
			require.False(t, i < 3 && given.has(quiet), "after %d s", i+1)
		}
		require.False(t, given.has(busy))
		require.False(t, lends(busy))
		require.Eventually(t, func() bool { return lends(quiet) }, time.Minute, 100*time.Millisecond)
		c.delegate(a, quiet) // the desk asks for it at once when the client works there again
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

func (g *givenBack) has(dir moraine.InodeID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dirs[uint64(dir)]
}

// Many directories that are quiet at the same time are given back in few requests, while the client
// works in another.
func TestManyQuietDirectoriesAreGivenBackTogether(t *testing.T) {
	const many = 600
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		given := &givenBack{dirs: map[uint64]bool{}}
		c.OnMeta(given.see)
		for i := range many {
			_, err := a.Inodes().Mkdir(c.ctx, dir, fmt.Sprint("d", i), client.NodeOptions{Mode: 0o755, Exclusive: true})
			require.NoError(t, err)
		}
		for i := range 1000 {
			makeFiles(c, a, dir, i, i+1)
			time.Sleep(10 * time.Millisecond)
		}
		require.False(t, given.has(dir))
		require.Len(t, given.dirs, many)
		require.LessOrEqual(t, given.requests, many/wire.MaxEndDelegation+2) // the first has those of the first moment
		require.Equal(t, many+1000, countOf(c, b, dir))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}
