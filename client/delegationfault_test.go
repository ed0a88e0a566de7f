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
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

func isBatch(req *wire.MetaRequest) bool { return req.GetBatch() != nil }

// inDelegated runs fn with a directory that is delegated to a client, and with another client.
func inDelegated(t *testing.T, fn func(c *cluster, a, b *client.Client, dir moraine.InodeID)) {
	t.Helper()
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		dir, err := b.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		c.delegate(a, dir.Inode())
		fn(c, a, b, dir.Inode())
	})
}

// makeFiles makes numbered files.
func makeFiles(c *cluster, cl *client.Client, dir moraine.InodeID, from, to int) {
	c.t.Helper()
	for i := from; i < to; i++ {
		_, err := cl.Inodes().Create(c.ctx, dir, fmt.Sprintf("f%06d", i), client.NodeOptions{Mode: 0o644, Exclusive: true})
		require.NoError(c.t, err)
	}
}

// countOf counts the entries of a directory.
func countOf(c *cluster, cl *client.Client, dir moraine.InodeID) (n int) {
	c.t.Helper()
	for _, err := range cl.Inodes().ReadDir(c.ctx, dir) {
		require.NoError(c.t, err)
		n++
	}
	return n
}

// A batch whose answer is lost is applied once.
func TestABatchWhoseAnswerIsLostIsAppliedOnce(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		c.OnMeta(loseReply(3, isBatch))
		makeFiles(c, a, dir, 0, 600)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.Equal(t, 600, countOf(c, b, dir))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// The queue is bounded: while the service takes nothing, changes wait, and none is lost.
func TestAFullQueueWaits(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		slow := time.Second
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if isBatch(req) {
				time.Sleep(slow)
			}
			return nil, nil
		})
		began := time.Now()
		makeFiles(c, a, dir, 0, 6000)
		require.Greater(t, time.Since(began), slow)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.Equal(t, 6000, countOf(c, b, dir))
	})
}

// Another leader takes the batches of the same delegation.
func TestDelegatedChangesOutliveALeader(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		for i := range 6 {
			makeFiles(c, a, dir, 100*i, 100*i+50)
			if i%2 == 0 {
				c.elect([]string{"m2", "m3", "m1"}[i/2])
			}
			makeFiles(c, a, dir, 100*i+50, 100*i+100)
		}
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.Equal(t, 600, countOf(c, b, dir))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// The end of a client sends what is queued.
func TestTheEndOfAClientSendsWhatIsQueued(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		makeFiles(c, a, dir, 0, 100)
		require.NoError(t, a.Close())
		require.Equal(t, 100, countOf(c, b, dir))
	})
}

// What a session had queued when it ended is lost. The next fsync says so, once, and the client goes on
// under its next session.
func TestALostSessionLosesItsQueue(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		lost := false
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if isBatch(req) && !lost {
				lost = true
				return nil, errKind(moraine.SessionExpired)
			}
			return nil, nil
		})
		makeFiles(c, a, dir, 0, 10)
		require.ErrorIs(t, a.Inodes().Sync(c.ctx, dir), moraine.IOError)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.GreaterOrEqual(t, a.Stats().DelegatedLost, uint64(10))
		require.Zero(t, countOf(c, a, dir))
		makeFiles(c, a, dir, 0, 10)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.Equal(t, 10, countOf(c, b, dir))
	})
}

// Another client that wants something of a delegated directory gets all that was done there before.
func TestOthersSeeWhatIsDoneInADelegatedDirectory(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		cfg := config()
		cfg.CacheEntries = -1
		plain := c.dial("plain", cfg)
		defer plain.Close()
		for round := range 20 {
			for _, other := range []*client.Client{b, plain} {
				name := fmt.Sprint("round", round, other == plain)
				f, err := a.Inodes().Create(c.ctx, dir, name, client.NodeOptions{Mode: 0o640, UID: 7, GID: 8, Exclusive: true})
				require.NoError(t, err)
				there, err := other.Inodes().Lookup(c.ctx, dir, name)
				require.NoError(t, err)
				require.Equal(t, f.String(), there.String())
				mine, err := a.Inodes().Stat(c.ctx, dir)
				require.NoError(t, err)
				theirs, err := other.Inodes().Stat(c.ctx, dir)
				require.NoError(t, err)
				require.Equal(t, mine.String(), theirs.String())
				_, err = other.Inodes().Remove(c.ctx, dir, name, client.RemoveOptions{})
				require.NoError(t, err)
				_, err = a.Inodes().Lookup(c.ctx, dir, name)
				require.ErrorIs(t, err, moraine.NotFound)
			}
			time.Sleep(11 * time.Second) // the directory is not delegated before
			if round%5 == 4 {
				time.Sleep(20 * time.Minute)
			}
			c.delegateSoon(a, dir)
		}
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// Several directories are delegated at the same time, and use up reservations of numbers.
func TestManyDirectoriesAreDelegatedTogether(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, b := c.dial("a", delegating()), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				dir, err := a.Mkdir(c.ctx, fmt.Sprint("/dir", i), 0o755)
				if err == nil {
					makeFiles(c, a, dir.Inode(), 0, 800)
				}
			})
		}
		wg.Wait()
		require.Greater(t, a.Stats().DelegatedChanges, uint64(4000))
		for i := range 8 {
			dir, err := b.Stat(c.ctx, fmt.Sprint("/dir", i))
			require.NoError(t, err)
			require.Equal(t, 800, countOf(c, b, dir.Inode()))
		}
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// The mount of a certificate that squashes root shows the owner that the service gives.
func TestDelegatedFilesOfRootBelongToNobody(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		peer := memcluster.Peer(transport.RoleClient, "a")
		peer.Squash = true
		a, b := c.dialAs(peer, delegating()), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		dir, err := b.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		c.delegate(a, dir.Inode())
		f, err := a.Inodes().Create(c.ctx, dir.Inode(), "f", client.NodeOptions{Exclusive: true})
		require.NoError(t, err)
		require.EqualValues(t, 65534, f.UID())
		there, err := b.Inodes().Lookup(c.ctx, dir.Inode(), "f")
		require.NoError(t, err)
		require.Equal(t, f.String(), there.String())
	})
}

// What a client lost before it ends, and has not said yet, is the error of its end.
func TestTheEndOfAClientSaysWhatIsLost(t *testing.T) {
	inDelegated(t, func(c *cluster, a, _ *client.Client, dir moraine.InodeID) {
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if isBatch(req) {
				return nil, errKind(moraine.SessionExpired)
			}
			return nil, nil
		})
		makeFiles(c, a, dir, 0, 10)
		err := a.Close()
		require.ErrorIs(t, err, moraine.IOError)
		require.ErrorContains(t, err, "changes of 11 inodes") // the files, and the directory
	})
}

// A cut that is longer than the patience of calls loses nothing while the session lives.
func TestALongCutLosesNoDelegatedChange(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cfg := delegating()
		cfg.Patience = 2 * time.Second
		a, b := c.dial("a", cfg), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		dir, err := b.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		c.delegate(a, dir.Inode())
		var cut, lose atomic.Bool
		cut.Store(true)
		lose.Store(true)
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch {
			case !isBatch(req) || !cut.Load():
				return nil, nil
			case !lose.Swap(false):
				return nil, errKind(moraine.Unavailable)
			}
			return func(*wire.MetaResponse, error) (*wire.MetaResponse, error) { // it took effect
				return nil, errKind(moraine.Unavailable)
			}, nil
		})
		makeFiles(c, a, dir.Inode(), 0, 600)
		require.ErrorIs(t, a.Inodes().Sync(c.ctx, dir.Inode()), moraine.Timeout)
		time.Sleep(5 * cfg.Patience)
		cut.Store(false)
		require.NoError(t, a.Inodes().Sync(c.ctx, dir.Inode()))
		require.Equal(t, 600, countOf(c, b, dir.Inode()))
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// A file that was made here gets its content in stripes if the metadata keeps no more of it.
func TestContentThatTheMetadataKeepsNotGoesToStripes(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		var refused atomic.Int64
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			var empty []int // what a full service does
			for i, op := range req.GetBatch().GetOps() {
				if create := op.GetCreate(); len(create.GetContent()) > 0 {
					create.Content = nil
					empty = append(empty, i)
				}
			}
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				for _, i := range empty {
					if results := r.GetBatch().GetResults(); i < len(results) {
						results[i].Empty = true
						refused.Add(1)
					}
				}
				return r, err
			}, nil
		})
		at := &place{c.ctx, a.Inodes(), dir}
		makeFiles(c, a, dir, 0, 1)
		at.write("f000000", 0, bytesOf(1, 100))
		require.NotZero(t, refused.Load())
		require.NoError(t, a.Inodes().Sync(c.ctx, dir))
		require.Zero(t, a.Stats().DelegatedLost)
		mine, err := at.stat("f000000")
		require.NoError(t, err)
		require.EqualValues(t, 100, mine.Size())
		there, err := b.Inodes().Lookup(c.ctx, dir, "f000000")
		require.NoError(t, err)
		require.Equal(t, there.String(), mine.String())
		got := make([]byte, 100)
		h, err := b.Inodes().OpenHandle(c.ctx, there.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		_, err = h.ReadAt(c.ctx, got, 0)
		require.NoError(t, err)
		require.Equal(t, bytesOf(1, 100), got)
		require.NoError(t, h.Close(c.ctx))
	})
}
