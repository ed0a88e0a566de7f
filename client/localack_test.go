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

// openLocal makes a file, and opens it at level local.
func openLocal(c *cluster, cl *client.Client, dir moraine.InodeID, name string) *client.Handle {
	c.t.Helper()
	f, err := cl.Inodes().Create(c.ctx, dir, name, client.NodeOptions{Mode: 0o644, Exclusive: true})
	require.NoError(c.t, err)
	h, err := cl.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{Level: moraine.Local})
	require.NoError(c.t, err)
	return h
}

// writeLocal makes a file with content, and closes it at level local.
func writeLocal(c *cluster, cl *client.Client, dir moraine.InodeID, name string, content []byte) {
	c.t.Helper()
	h := openLocal(c, cl, dir, name)
	_, err := h.WriteAt(c.ctx, content, 0)
	require.NoError(c.t, err)
	require.NoError(c.t, h.Close(c.ctx))
}

// contentOf reads a file by its name.
func contentOf(c *cluster, cl *client.Client, dir moraine.InodeID, name string) []byte {
	c.t.Helper()
	a, err := cl.Inodes().Lookup(c.ctx, dir, name)
	require.NoError(c.t, err)
	h, err := cl.Inodes().OpenHandle(c.ctx, a.Inode(), client.HandleOptions{})
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, h.Close(c.ctx)) }()
	got := make([]byte, h.Size())
	n, err := h.ReadAt(c.ctx, got, 0)
	require.NoError(c.t, err)
	return got[:n]
}

// gate holds batches back while it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{}
	held atomic.Int64
}

func (g *gate) see(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
	if isBatch(req) {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		if open != nil {
			g.held.Add(1)
			<-open
		}
	}
	return nil, nil
}

// shut begins to hold batches back, until the caller calls open.
func (g *gate) shut() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ch := make(chan struct{})
	g.open = ch
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open = nil
		close(ch)
	}
}

// At level local the close of a small file in a delegated directory waits for no batch. Sync of the file, or of
// the directory, does.
func TestCloseAtLevelLocalWaitsForNoBatch(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		g := &gate{}
		c.OnMeta(g.see)
		open := g.shut()
		h := openLocal(c, a, dir, "open")
		_, err := h.WriteAt(c.ctx, bytesOf(1, 100), 0)
		require.NoError(t, err)
		require.NoError(t, h.Flush(c.ctx))
		for i := range 100 {
			writeLocal(c, a, dir, fmt.Sprint("f", i), bytesOf(uint64(i), 4096))
		}
		var synced atomic.Int64
		var wg sync.WaitGroup
		for _, wait := range []func() error{
			func() error { return h.Sync(c.ctx) },
			func() error { return a.Inodes().Sync(c.ctx, dir) },
			func() error { return a.Inodes().WaitNVMe(c.ctx, h.Inode()) },
		} {
			wg.Go(func() {
				if err := wait(); err == nil {
					synced.Add(1)
				}
			})
		}
		time.Sleep(time.Second)
		require.Zero(t, synced.Load())
		require.EqualValues(t, 1, g.held.Load())
		open()
		wg.Wait()
		require.EqualValues(t, 3, synced.Load())
		require.NoError(t, h.Close(c.ctx))
		for i := range 100 {
			require.Equal(t, bytesOf(uint64(i), 4096), contentOf(c, b, dir, fmt.Sprint("f", i)))
		}
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// What was closed at level local, the next open by another client reads, and so does one by the same client.
func TestAnOpenReadsWhatWasClosedAtLevelLocal(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		for round := range uint64(6) {
			name := fmt.Sprint("round", round)
			writeLocal(c, a, dir, name, bytesOf(round, 5000))
			if round%2 == 0 {
				require.Equal(t, bytesOf(round, 5000), contentOf(c, a, dir, name))
			}
			require.Equal(t, bytesOf(round, 5000), contentOf(c, b, dir, name))
			time.Sleep(20 * time.Minute)
			c.delegateSoon(a, dir)
			time.Sleep(11 * time.Second)
			c.delegate(a, dir)
		}
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// A larger file, one in a directory that is not delegated, and one that is also open at another level are on
// the servers when they are closed at level local.
func TestWhatLevelLocalDoesNotConcern(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		plain, err := b.Mkdir(c.ctx, "/plain", 0o755)
		require.NoError(t, err)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if isBatch(req) {
				time.Sleep(time.Second)
			}
			return nil, nil
		})
		began := time.Now()
		writeLocal(c, a, plain.Inode(), "small", bytesOf(1, 100))
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, bytesOf(1, 100), contentOf(c, b, plain.Inode(), "small"))

		began = time.Now()
		writeLocal(c, a, dir, "large", bytesOf(2, 100_000))
		require.GreaterOrEqual(t, time.Since(began), time.Second)

		h := openLocal(c, a, dir, "two levels")
		safe, err := a.Inodes().OpenHandle(c.ctx, h.Inode(), client.HandleOptions{Level: moraine.NVMe})
		require.NoError(t, err)
		_, err = h.WriteAt(c.ctx, bytesOf(3, 100), 0)
		require.NoError(t, err)
		began = time.Now()
		require.NoError(t, h.Close(c.ctx))
		require.GreaterOrEqual(t, time.Since(began), time.Second)
		require.NoError(t, safe.Close(c.ctx))
	})
}

// What the service refuses after a close at level local is an error of the next sync of the file and of its
// directory, once.
func TestALossAfterACloseAtLevelLocalIsReported(t *testing.T) {
	for name, full := range map[string]bool{"no room": true, "lost session": false} {
		t.Run(name, func(t *testing.T) {
			inDelegated(t, func(c *cluster, a, _ *client.Client, dir moraine.InodeID) {
				require.NoError(t, a.Inodes().Sync(c.ctx, dir))
				want := moraine.IOError
				if full {
					want = moraine.NoSpace
				}
				first := true
				c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
					if !isBatch(req) || !first {
						return nil, nil
					}
					first = false
					if !full {
						return nil, errKind(moraine.SessionExpired)
					}
					for _, op := range req.GetBatch().GetOps() {
						if create := op.GetCreate(); create != nil {
							create.Content = nil
						}
					}
					return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
						for _, result := range r.GetBatch().GetResults() {
							result.Empty = true
						}
						return r, err
					}, nil
				})
				h := openLocal(c, a, dir, "f")
				_, err := h.WriteAt(c.ctx, bytesOf(1, 100), 0)
				require.NoError(t, err)
				require.NoError(t, h.Flush(c.ctx))
				require.ErrorIs(t, h.Sync(c.ctx), want)
				require.NoError(t, h.Sync(c.ctx))
				require.NoError(t, h.Close(c.ctx))
				require.ErrorIs(t, a.Inodes().Sync(c.ctx, dir), want)
				require.NoError(t, a.Inodes().Sync(c.ctx, dir))
				require.NotZero(t, a.Stats().DelegatedLost)
			})
		})
	}
}

// Once the metadata has more content than it takes, level local waits as level memory does, and nothing is lost.
func TestLevelLocalWaitsWhenTheMetadataIsFull(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		var answered atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			for _, op := range req.GetBatch().GetOps() {
				if op.Answered {
					answered.Add(1)
				}
			}
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				for i, op := range req.GetBatch().GetOps() {
					if results := r.GetBatch().GetResults(); op.Answered && i < len(results) {
						results[i].Full = true
					}
				}
				return r, err
			}, nil
		})
		writeLocal(c, a, dir, "first", bytesOf(1, 100))
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.EqualValues(t, 1, answered.Load())
		writeLocal(c, a, dir, "second", bytesOf(2, 100))
		require.EqualValues(t, 1, answered.Load())
		require.Equal(t, bytesOf(1, 100), contentOf(c, b, dir, "first"))
		require.Equal(t, bytesOf(2, 100), contentOf(c, b, dir, "second"))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}
