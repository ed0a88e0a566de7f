package client_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

// givesBack reports whether a request gives a directory back.
func givesBack(req *wire.MetaRequest, dir moraine.InodeID) bool {
	return slices.Contains(req.GetEndDelegation().GetInodes(), uint64(dir))
}

// asksFor reports whether a request asks for a directory.
func asksFor(req *wire.MetaRequest, dir moraine.InodeID) bool {
	return req.GetDelegate().GetInode() == uint64(dir)
}

// A client that never had the answer by which a directory is delegated to it gives the directory back
// when that is recalled, then and later.
func TestADirectoryWhoseDelegationWasNotAnsweredIsGivenBack(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		cfg := delegating()
		cfg.Patience = 2 * time.Second
		a, b := c.dial("a", cfg), c.dial("b", config())
		defer a.Close()
		defer b.Close()
		dir, err := b.Mkdir(c.ctx, "/dir", 0o755)
		require.NoError(t, err)
		var cut atomic.Bool
		var asked, given atomic.Int64
		cut.Store(true)
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if givesBack(req, dir.Inode()) {
				given.Add(1)
			}
			if !asksFor(req, dir.Inode()) {
				return nil, nil
			}
			asked.Add(1)
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				if cut.Load() {
					return nil, errKind(moraine.Unavailable)
				}
				return r, err
			}, nil
		})
		made := 0 // the client asks once it trusts its leases, which may be after the first files
		for ; asked.Load() == 0 && made < 1000; made++ {
			makeFiles(c, a, dir.Inode(), made, made+1)
			time.Sleep(10 * time.Millisecond)
		}
		require.NotZero(t, asked.Load())
		require.Equal(t, made, countOf(c, b, dir.Inode()))
		time.Sleep(2 * cfg.Patience)
		require.NotZero(t, given.Load())
		cut.Store(false)
		time.Sleep(20 * time.Minute)
		c.delegateSoon(a, dir.Inode()) // refused, since the other client has cached something of it
		time.Sleep(11 * time.Second)
		c.delegate(a, dir.Inode())
		given.Store(0)
		makeFiles(c, a, dir.Inode(), made, made+10)
		require.Equal(t, made+10, countOf(c, b, dir.Inode()))
		require.NotZero(t, given.Load())
		require.Zero(t, a.Stats().DelegatedLost)
	})
}

// A directory that is delegated to the next session while the queue of the last one is on its way is
// given back under the next one.
func TestADirectoryOfTheNextSessionIsGivenBackToIt(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		next, err := b.Mkdir(c.ctx, "/next", 0o755)
		require.NoError(t, err)
		old := a.Session()
		var asked, given, ended atomic.Bool
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch {
			case isBatch(req) && req.Session == uint64(old) && !ended.Load():
				return nil, errKind(moraine.Unavailable)
			case (isBatch(req) || req.GetRenewSession() != nil) && req.Session == uint64(old):
				return nil, errKind(moraine.SessionExpired)
			case asksFor(req, next.Inode()):
				asked.Store(true)
			case givesBack(req, next.Inode()) && req.Session != uint64(old):
				given.Store(true)
			}
			return nil, nil
		})
		makeFiles(c, a, dir, 0, 10)
		for a.Session() == old {
			time.Sleep(100 * time.Millisecond)
		}
		for i := 0; !asked.Load(); i++ {
			makeFiles(c, a, next.Inode(), i, i+1)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		ended.Store(true)
		time.Sleep(time.Minute)
		require.True(t, given.Load())
	})
}

// A file that another client removes while it is open here, and a lease of a step, end no delegation.
func TestWhatConcernsNoDirectoryEndsNoDelegation(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		f, err := b.Inodes().Create(c.ctx, b.Root(), "f", client.NodeOptions{Mode: 0o644, Exclusive: true})
		require.NoError(t, err)
		h, err := a.Inodes().OpenHandle(c.ctx, f.Inode(), client.HandleOptions{})
		require.NoError(t, err)
		var kept atomic.Int64
		var given atomic.Bool
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if req.GetKeep() != nil {
				kept.Add(1)
			}
			if req.GetEndDelegation() != nil {
				given.Store(true)
			}
			return nil, nil
		})
		_, err = b.Inodes().Remove(c.ctx, b.Root(), "f", client.RemoveOptions{Keep: true})
		require.NoError(t, err)
		for range 100 {
			makeFiles(c, a, dir, int(kept.Load())*1000, int(kept.Load())*1000+1)
			_, err = a.Inodes().Remove(c.ctx, dir, "f000000", client.RemoveOptions{})
			if kept.Load() > 0 {
				break
			}
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		require.NotZero(t, kept.Load())
		require.False(t, given.Load())
		require.NoError(t, h.Close(c.ctx))
	})
}
