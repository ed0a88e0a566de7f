package client_test

import (
	"fmt"
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

// old makes a directory with files, of another client, and lets a minute pass.
func (c *cluster) old(path string, files int) client.Attr {
	c.t.Helper()
	b := c.dial("b", uncached())
	defer b.Close()
	dir, err := b.Mkdir(c.ctx, path, 0o755)
	require.NoError(c.t, err)
	makeFiles(c, b, dir.Inode(), 0, files)
	time.Sleep(time.Minute)
	return dir
}

// A client whose first requests are removals gives them the time of the service, which it learns with the
// delegation. No later change gives the directory a time before one that it had.
func TestTimesOfAClientThatBeginsWithRemovals(t *testing.T) {
	for what, hide := range map[string]func(*wire.MetaResponse){
		"as it is":                      func(*wire.MetaResponse) {},
		"delegations without a time":    func(r *wire.MetaResponse) { hideNow(r) },
		"no answer that says any times": func(r *wire.MetaResponse) { hideNow(r); hideTimes(r) },
	} {
		t.Run(what, func(t *testing.T) {
			inCluster(t, 3, func(c *cluster) {
				dir := c.old("/dir", 30)
				began := time.Now()
				a := c.dial("a", delegating())
				defer a.Close()
				c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
					return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
						hide(r)
						return r, err
					}, nil
				})
				for i := range 20 {
					_, err := a.Inodes().Remove(c.ctx, dir.Inode(), fmt.Sprintf("f%06d", i), client.RemoveOptions{})
					require.NoError(t, err)
					time.Sleep(10 * time.Millisecond)
				}
				if what == "no answer that says any times" {
					require.Zero(t, a.Stats().DelegatedChanges)
				} else {
					require.Greater(t, a.Stats().DelegatedChanges, uint64(10))
				}
				require.NoError(t, a.Inodes().Sync(c.ctx, dir.Inode()))
				b := c.dial("b", config())
				defer b.Close()
				now, err := b.Inodes().Stat(c.ctx, dir.Inode())
				require.NoError(t, err)
				require.False(t, now.ModTime().Before(began), "%v", now.ModTime())
				require.Zero(t, a.Stats().DelegatedLost)
			})
		})
	}
}

func hideNow(r *wire.MetaResponse) {
	if d := r.GetDelegate(); d != nil {
		d.Now = 0
	}
}

func hideTimes(r *wire.MetaResponse) {
	if a := r.GetEntry().GetAttr(); a != nil {
		a.Ctime = 0
	}
}

// The times of a delegated directory rise, also where the client removes from it by requests to the service,
// hours after it has seen the last time.
func TestTimesOfADelegatedDirectoryRise(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		dir := c.old("/dir", 60)
		a := c.dial("a", delegating())
		defer a.Close()
		c.delegate(a, dir.Inode())
		for round := range 3 {
			time.Sleep(5 * time.Hour)
			was := time.Time{}
			for i := range 20 {
				_, err := a.Inodes().Remove(c.ctx, dir.Inode(), fmt.Sprintf("f%06d", 20*round+i), client.RemoveOptions{})
				require.NoError(t, err)
				now, err := a.Inodes().Stat(c.ctx, dir.Inode())
				require.NoError(t, err)
				require.False(t, now.ModTime().Before(was), "round %d, removal %d: %v, before %v", round, i, now.ModTime(), was)
				was = now.ModTime()
				time.Sleep(time.Millisecond)
			}
		}
		require.Greater(t, a.Stats().DelegatedChanges, uint64(30))
	})
}

// A client that moves a tree below a quota has no directory in it for itself afterwards, so a create that the quota
// refuses fails at once.
func TestATreeMovedBelowAQuotaIsNotDelegated(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		a, admin := c.dial("a", delegating()), c.dialAs(memcluster.Peer(transport.RoleAdmin, "admin"), config())
		defer a.Close()
		defer admin.Close()
		limited, err := a.Mkdir(c.ctx, "/limited", 0o755)
		require.NoError(t, err)
		tree, err := a.Mkdir(c.ctx, "/tree", 0o755)
		require.NoError(t, err)
		top, err := a.Mkdir(c.ctx, "/tree/top", 0o755)
		require.NoError(t, err)
		require.NoError(t, admin.Quotas().Set(c.ctx, limited.Inode(), 0, 20))
		time.Sleep(20 * time.Second)
		c.delegate(a, top.Inode())
		require.NoError(t, a.Rename(c.ctx, "/tree", "/limited/tree", client.RenameOptions{}))
		for i := range 30 {
			_, err = a.Inodes().Create(c.ctx, top.Inode(), fmt.Sprint("f", i), client.NodeOptions{Mode: 0o644, Exclusive: true})
			if err != nil {
				break
			}
		}
		require.ErrorIs(t, err, moraine.QuotaExceeded)
		require.NoError(t, a.Inodes().Sync(c.ctx, 0))
		require.Zero(t, a.Stats().DelegatedLost)
		require.NotZero(t, tree.Inode())
	})
}

// Files of a checkpoint keep their seal in a directory that has none. The service refuses a change of them at once.
func TestSealedFilesOfADelegatedDirectory(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		dir := c.old("/dir", 10)
		a := c.dial("a", delegating())
		defer a.Close()
		in := a.Inodes()
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if op := req.GetRename(); op != nil && (op.Name == "f000001" || op.NewName == "f000001") || req.GetRemove().GetName() == "f000001" {
				return nil, errKind(moraine.Immutable)
			}
			return func(r *wire.MetaResponse, err error) (*wire.MetaResponse, error) {
				for _, e := range r.GetReadDir().GetEntries() {
					e.Attr.Sealed = e.Name == "f000001"
				}
				return r, err
			}, nil
		})
		c.delegate(a, dir.Inode())
		at := func(name string) client.Entry { return client.Entry{Parent: dir.Inode(), Name: name} }
		require.ErrorIs(t, in.Rename(c.ctx, at("f000001"), at("x"), client.RenameOptions{}), moraine.Immutable)
		require.ErrorIs(t, in.Rename(c.ctx, at("f000002"), at("f000001"), client.RenameOptions{}), moraine.Immutable)
		_, err := in.Remove(c.ctx, dir.Inode(), "f000001", client.RemoveOptions{})
		require.ErrorIs(t, err, moraine.Immutable)
		local := a.Stats().DelegatedChanges
		require.NoError(t, in.Rename(c.ctx, at("f000002"), at("f000003"), client.RenameOptions{}))
		require.Equal(t, local+1, a.Stats().DelegatedChanges)
	})
}

// A request for which nothing may be delegated waits for the requests for directories that run, and none begins until
// its answer.
func TestNoDirectoryIsAskedForWhileARequestEndsAll(t *testing.T) {
	inCluster(t, 3, func(c *cluster) {
		first, second := c.old("/first", 0), c.old("/second", 0)
		a := c.dial("a", delegating())
		defer a.Close()
		var asked, given, set atomic.Int64
		hold, policy := make(chan struct{}), make(chan struct{})
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch {
			case req.GetDelegate().GetInode() != 0:
				asked.Add(1)
				<-hold
			case req.GetEndDelegation() != nil:
				given.Add(1)
			case req.GetSetPolicy() != nil:
				set.Add(1)
				<-policy
			}
			return nil, nil
		})
		time.Sleep(time.Second) // it has its leases
		makeFiles(c, a, first.Inode(), 0, 2)
		require.Eventually(t, func() bool { return asked.Load() > 0 }, 20*time.Second, time.Millisecond)
		done := make(chan error, 1)
		go func() { done <- a.Policies().Set(c.ctx, first.Inode(), client.Policy{Trash: time.Hour}) }()
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, set.Load(), "the directory may be delegated by the request that runs")
		close(hold)
		require.Eventually(t, func() bool { return set.Load() > 0 }, 20*time.Second, time.Millisecond)
		require.EqualValues(t, 1, given.Load())
		makeFiles(c, a, second.Inode(), 0, 10)
		_, err := a.Mkdir(c.ctx, "/second/new", 0o755)
		require.NoError(t, err)
		require.EqualValues(t, 1, asked.Load())
		close(policy)
		require.NoError(t, <-done)
		makeFiles(c, a, second.Inode(), 10, 20)
		require.Eventually(t, func() bool { return asked.Load() > 1 }, 20*time.Second, time.Millisecond)
	})
}
