package client_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// Programs that each write one small file after the other share the batches: none of them waits for the
// batches of the others before its own is sent.
func TestProgramsShareBatches(t *testing.T) {
	const programs, files = 8, 50
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		var batches atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if isBatch(req) {
				batches.Add(1)
				time.Sleep(3 * time.Millisecond)
			}
			return nil, nil
		})
		var wg sync.WaitGroup
		for p := range programs {
			wg.Go(func() {
				time.Sleep(time.Duration(p) * time.Millisecond)
				for i := range files {
					f, err := a.Inodes().Create(c.ctx, dir, fmt.Sprint("p", p, "f", i), client.NodeOptions{Mode: 0o644, Exclusive: true})
					if err != nil {
						return // the file is missing then
					}
					h, err := a.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{})
					if err != nil {
						return
					}
					_, _ = h.WriteAt(c.ctx, bytesOf(uint64(i), 4096), 0)
					time.Sleep(200 * time.Microsecond)
					_ = h.Close(c.ctx)
				}
			})
		}
		wg.Wait()
		sent := batches.Load()
		t.Logf("%d files in %d batches", programs*files, sent)
		require.Less(t, sent, int64(files*3/2))
		require.Equal(t, programs*files, countOf(c, b, dir))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// What the service did with delegated directories and new files in them, the client sees: extended
// attributes, and that a file without a name is no entry.
func TestTheClientSeesWhatTheServiceDidInADelegatedDirectory(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		sub, err := a.Inodes().Mkdir(c.ctx, dir, "sub", client.NodeOptions{Mode: 0o755, Exclusive: true})
		require.NoError(t, err)
		f, err := a.Inodes().Create(c.ctx, sub.Inode(), "f", client.NodeOptions{Mode: 0o644, Exclusive: true})
		require.NoError(t, err)
		for _, inode := range []moraine.InodeID{sub.Inode(), f.Inode()} {
			names, err := a.Xattrs().List(c.ctx, inode)
			require.NoError(t, err)
			require.Empty(t, names)
			require.NoError(t, a.Xattrs().Set(c.ctx, inode, "user.x", []byte("y"), 0))
			_, err = a.Inodes().Stat(c.ctx, inode)
			require.NoError(t, err)
			value, err := a.Xattrs().Get(c.ctx, inode, "user.x")
			require.NoError(t, err)
			require.Equal(t, "y", string(value))
			names, err = a.Xattrs().List(c.ctx, inode)
			require.NoError(t, err)
			require.Equal(t, []string{"user.x"}, names)
		}
		_, err = a.Inodes().Remove(c.ctx, sub.Inode(), "f", client.RemoveOptions{})
		require.NoError(t, err)
		unnamed, err := a.Inodes().CreateUnnamed(c.ctx, sub.Inode(), client.NodeOptions{Mode: 0o600})
		require.NoError(t, err)
		require.Zero(t, countOf(c, a, sub.Inode()))
		_, err = a.Inodes().Remove(c.ctx, dir, "sub", client.RemoveOptions{Directory: true})
		require.NoError(t, err)
		require.NoError(t, a.Inodes().Release(c.ctx, unnamed.Inode()))
		_, err = b.Inodes().Lookup(c.ctx, dir, "sub")
		require.ErrorIs(t, err, moraine.NotFound)
	})
}
