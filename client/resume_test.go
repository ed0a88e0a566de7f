package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// resuming is delegating for one of the processes that use a session in turn.
func resuming(life uint64) client.Config {
	cfg := delegating()
	cfg.Resume = &client.Resume{Nonce: [16]byte{1}, Life: life}
	return cfg
}

// holdBatches makes batches wait until the caller calls letGo.
func (c *cluster) holdBatches() (letGo func()) {
	held := make(chan struct{})
	c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
		if isBatch(req) {
			<-held
		}
		return nil, nil
	})
	return func() { close(held) }
}

// A client takes over the session of one that had directories delegated to it, more than one request
// gives back. They are free at once. What the first client had sent is there, what it had queued is
// not, and the service refuses what arrives from it later.
func TestTheDelegationsOfAResumedSessionEnd(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		first, other := c.dial("a", resuming(1)), c.dial("b", config())
		defer other.Close()
		first.Inodes().Resumed()
		made, err := other.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		dir, dirs := made.Inode(), []moraine.InodeID{made.Inode()}
		c.delegate(first, dir)
		for i := range 600 { // a new directory in a delegated one is delegated too
			a, err := first.Inodes().Mkdir(c.ctx, dir, fmt.Sprint("sub", i), client.NodeOptions{Mode: 0o755, Exclusive: true})
			require.NoError(t, err)
			dirs = append(dirs, a.Inode())
		}
		require.NoError(t, first.Inodes().Sync(c.ctx, dir))
		letGo := c.holdBatches()
		lost, err := first.Inodes().Create(c.ctx, dir, "lost", client.NodeOptions{Mode: 0o644, Exclusive: true})
		require.NoError(t, err)

		second := c.dial("a", resuming(2))
		defer second.Close()
		second.Inodes().Resumed()
		require.Equal(t, first.Session(), second.Session())
		for i, d := range dirs {
			// Soon: without a recall that nobody carries out.
			_, err := other.Inodes().Create(c.within(time.Second), d, fmt.Sprint("other", i), client.NodeOptions{Mode: 0o644, Exclusive: true})
			require.NoError(t, err)
		}
		letGo()
		require.Error(t, first.Inodes().Sync(c.ctx, dir))
		_, err = second.Inodes().Stat(c.ctx, lost.Inode())
		require.Equal(t, moraine.NotFound, moraine.KindOf(err))
		require.Equal(t, 601, countOf(c, second, dir))
		require.Error(t, first.Close()) // it cannot end the session of the second one
		makeFiles(c, second, dir, 0, 100)
		require.NoError(t, second.Inodes().Sync(c.ctx, dir))
		require.Equal(t, 701, countOf(c, other, dir))
	})
}
