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
