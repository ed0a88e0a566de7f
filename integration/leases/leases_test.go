// Package leases_test compares what clients answer from their caches with what they
// may answer. It uses a cluster of incluster, with its real log, elections and
// network delays. One path through it: inCluster starts a cluster, warm waits for
// leases, a fault hits a client or the leader, and history.check (model_test.go)
// finds contradicting answers.
package leases_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// cached is the settings of a client with a cache.
var cached = client.Config{CacheEntries: 10_000, Patience: 10 * time.Second}

// counter counts a client's requests.
type counter struct{ reads, leases atomic.Int64 }

func (n *counter) over(d transport.Dialer) transport.Dialer {
	return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
		switch req.Op.(type) {
		case *wire.MetaRequest_Lookup, *wire.MetaRequest_Walk, *wire.MetaRequest_GetAttr, *wire.MetaRequest_ReadDir, *wire.MetaRequest_GetXattr:
			n.reads.Add(1)
		case *wire.MetaRequest_Leases:
			n.leases.Add(1)
		}
		return m.Do(ctx, req)
	})
}

// inCluster runs fn in a bubble of time with a cluster without chunkservers.
func inCluster(t *testing.T, seed uint64, fn func(ctx context.Context, c *incluster.Cluster)) {
	t.Helper()
	inClusterWith(t, incluster.Options{Seed: seed, Chunkservers: 1}, fn)
}

func inClusterWith(t *testing.T, opts incluster.Options, fn func(ctx context.Context, c *incluster.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		opts.SnapshotEntries, opts.MemTableBytes = 5000, 4<<20 // these tests do not cover how the state is stored
		c, err := incluster.Start(ctx, opts)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		fn(ctx, c)
	})
}

func open(t *testing.T, ctx context.Context, c *incluster.Cluster, node string, cfg client.Config) *incluster.Client {
	t.Helper()
	cl, err := c.ClientWith(ctx, node, cfg)
	require.NoError(t, err)
	return cl
}

// warm waits until the client holds leases.
func warm(t *testing.T, ctx context.Context, cl *incluster.Client) {
	t.Helper()
	for range 1000 {
		_, err := cl.Inodes().Stat(ctx, cl.Root())
		require.NoError(t, err)
		if cl.Stats().CacheHits > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the client gets no leases")
}

func list(t *testing.T, ctx context.Context, cl *incluster.Client, path string) (names []string) {
	t.Helper()
	for e, err := range cl.ReadDir(ctx, path) {
		require.NoError(t, err)
		require.NotNil(t, e.Attr)
		names = append(names, e.Name)
	}
	return names
}

func TestAnUnchangedTreeCostsNoRequests(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		w := open(t, ctx, c, "w", client.Config{})
		defer w.Close()
		var n counter
		r, err := c.ClientOver(ctx, "r", cached, n.over)
		require.NoError(t, err)
		defer r.Close()
		_, err = w.MkdirAll(ctx, "a/b", 0)
		require.NoError(t, err)
		b, err := w.Stat(ctx, "a/b")
		require.NoError(t, err)
		for i := range 1200 { // more than a page
			_, err := w.Inodes().Create(ctx, b.Inode(), fmt.Sprintf("f%04d", i), client.NodeOptions{Mode: 0o644})
			require.NoError(t, err)
		}
		_, err = w.Symlink(ctx, "b/f0001", "a/link")
		require.NoError(t, err)
		warm(t, ctx, r)
		look := func() {
			require.Len(t, list(t, ctx, r, "a/b"), 1200)
			for i := range 1200 {
				a, err := r.Stat(ctx, fmt.Sprintf("a/b/f%04d", i))
				require.NoError(t, err)
				_, err = r.Inodes().Stat(ctx, a.Inode())
				require.NoError(t, err)
				_, err = r.Inodes().Lookup(ctx, b.Inode(), fmt.Sprintf("f%04d", i))
				require.NoError(t, err)
				names, err := r.Xattrs().List(ctx, a.Inode())
				require.NoError(t, err)
				require.Empty(t, names)
			}
			_, err := r.Stat(ctx, "a/link")
			require.NoError(t, err)
			_, err = r.Stat(ctx, "a/b/none")
			require.ErrorIs(t, err, moraine.NotFound)
			_, err = r.Inodes().Lookup(ctx, b.Inode(), "none either")
			require.ErrorIs(t, err, moraine.NotFound)
			_, err = r.Stat(ctx, "a/none")
			require.ErrorIs(t, err, moraine.NotFound)
			_, err = r.Stat(ctx, "a/none/x")
			require.ErrorIs(t, err, moraine.NotFound)
		}
		look()
		first, before := n.reads.Load(), r.Stats()
		for range 3 {
			look()
			time.Sleep(20 * time.Second) // leases are renewed
		}
		after := r.Stats()
		t.Logf("reads of the namespace for the first look: %d; for three more: %d, answered from the cache: %d; requests about leases in a minute: %d",
			first, n.reads.Load()-first, after.CacheHits-before.CacheHits, n.leases.Load())
		require.Equal(t, first, n.reads.Load())
		require.Equal(t, before.CacheMisses, after.CacheMisses)

		// Another client's change is visible at once, and only that is requested
		// again.
		_, err = w.Inodes().Create(ctx, b.Inode(), "none", client.NodeOptions{Mode: 0o600})
		require.NoError(t, err)
		first = n.reads.Load()
		a, err := r.Stat(ctx, "a/b/none")
		require.NoError(t, err)
		require.EqualValues(t, 0o600, a.Mode())
		_, err = r.Stat(ctx, "a/b/f0007")
		require.NoError(t, err)
		require.EqualValues(t, 1, n.reads.Load()-first)
		require.Contains(t, list(t, ctx, r, "a/b"), "none")

		// And so is the client's own change.
		_, err = r.SetAttr(ctx, "a/b/f0007", client.SetAttr{Mode: new(uint32(0o640))})
		require.NoError(t, err)
		a, err = r.Stat(ctx, "a/b/f0007")
		require.NoError(t, err)
		require.EqualValues(t, 0o640, a.Mode())
		require.NoError(t, r.Remove(ctx, "a/b/f0008"))
		_, err = r.Stat(ctx, "a/b/f0008")
		require.ErrorIs(t, err, moraine.NotFound)
		require.NotContains(t, list(t, ctx, r, "a/b"), "f0008")
	})
}

func TestACacheIsBounded(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		cfg := cached
		cfg.CacheEntries = 50
		w, r := open(t, ctx, c, "w", client.Config{}), open(t, ctx, c, "r", cfg)
		defer w.Close()
		defer r.Close()
		warm(t, ctx, r)
		for i := range 40 {
			for j := range 4 {
				_, err := w.MkdirAll(ctx, fmt.Sprintf("d%d/e%d", i, j), 0)
				require.NoError(t, err)
			}
		}
		for range 3 {
			for i := range 40 {
				require.Len(t, list(t, ctx, r, fmt.Sprintf("d%d", i)), 4)
				require.LessOrEqual(t, r.CacheItems(), 50)
			}
			time.Sleep(1500 * time.Millisecond) // leases are returned
		}
		// A change without a lease on it waits for nobody.
		began := time.Now()
		c.Net.Isolate("r")
		_, err := w.Mkdir(ctx, "d0/new", 0)
		require.NoError(t, err)
		require.Less(t, time.Since(began), time.Second)
		c.Net.Rejoin("r", "*")
	})
}

// After a failover the client keeps what did not change, and the next leader
// answers as soon as the client has come back.
func TestLeasesAreReclaimedAfterAFailover(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		reclaimed(t, func(c *incluster.Cluster, leader string) (back func() error) {
			c.Kill(leader)
			return func() error { return c.Restart(leader) }
		})
	})
	t.Run("vanished", func(t *testing.T) { // no connection breaks
		reclaimed(t, func(c *incluster.Cluster, leader string) (back func() error) {
			c.Net.DetectAfter(time.Hour)
			c.Net.Isolate(leader)
			return func() error { c.Net.Heal(); return nil }
		})
	})
}

// reclaimed loses a leader while one client changes something and another only
// holds leases.
func reclaimed(t *testing.T, lose func(c *incluster.Cluster, leader string) (back func() error)) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		w, r := open(t, ctx, c, "w", client.Config{}), open(t, ctx, c, "r", cached)
		defer w.Close()
		defer r.Close()
		for i := range 21 {
			_, err := w.MkdirAll(ctx, fmt.Sprintf("d%d/e", i), 0)
			require.NoError(t, err)
		}
		warm(t, ctx, r)
		look := func() {
			for i := range 20 {
				_, err := r.Stat(ctx, fmt.Sprintf("d%d/e", i))
				require.NoError(t, err)
			}
		}
		look()
		time.Sleep(2 * time.Second)
		back := lose(c, c.Leader())
		began := time.Now()
		_, err := w.Mkdir(ctx, "d20/new", 0)
		require.NoError(t, err)
		took := time.Since(began)
		t.Logf("the first change after the leader was lost took %v", took)
		// The next leader waits three seconds from its election on for clients that
		// do not come.
		require.Less(t, took, 3*time.Second, "holders of leases came to the next leader before the leases ended")
		for range 300 { // until the session holds leases again
			if before := r.Stats().MetaRequests; true {
				_, err := r.Inodes().Stat(ctx, r.Root())
				require.NoError(t, err)
				if r.Stats().MetaRequests == before {
					break
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		before := r.Stats()
		look()
		after := r.Stats()
		require.Equal(t, before.MetaRequests, after.MetaRequests, "what did not change is still known")
		_, err = r.Stat(ctx, "d20/new")
		require.NoError(t, err)
		require.NoError(t, back())
	})
}

// A disconnected client answers nothing from its cache once its leases may have
// ended, and delays others no longer than that.
func TestAClientThatIsCutOffTrustsNothing(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		w, r := open(t, ctx, c, "w", client.Config{}), open(t, ctx, c, "r", cached)
		defer w.Close()
		defer r.Close()
		_, err := w.MkdirAll(ctx, "d/e", 0)
		require.NoError(t, err)
		warm(t, ctx, r)
		_, err = r.Stat(ctx, "d/f")
		require.ErrorIs(t, err, moraine.NotFound)
		c.Net.Isolate("r")
		began := time.Now()
		changed := make(chan time.Duration, 1)
		go func() {
			_, err := w.Mkdir(ctx, "d/f", 0)
			if err != nil {
				t.Error(err)
			}
			changed <- time.Since(began)
		}()
		last := time.Duration(0)
		for time.Since(began) < 5*time.Second {
			at := time.Since(began)
			actx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			_, err := r.Stat(actx, "d/f")
			cancel()
			if moraine.KindOf(err) == moraine.NotFound {
				last = at
			}
			time.Sleep(10 * time.Millisecond)
		}
		took := <-changed
		t.Logf("the last answer from the cache was %v after the cut, the change was acknowledged after %v", last, took)
		require.Less(t, last, took, "an answer from the cache after the change was acknowledged")
		require.Positive(t, last)
		c.Net.Rejoin("r", "*")
		_, err = r.Stat(ctx, "d/f")
		require.NoError(t, err)
	})
}

// A directory that was removed, by another client or this one, does not exist:
// cached entries of it are no answer.
func TestARemovedDirectoryIsNotListedFromTheCache(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		w, r := open(t, ctx, c, "w", client.Config{}), open(t, ctx, c, "r", cached)
		defer w.Close()
		defer r.Close()
		warm(t, ctx, r)
		for name, by := range map[string]*incluster.Client{"d/others": w, "d/own": r} {
			_, err := w.MkdirAll(ctx, name, 0)
			require.NoError(t, err)
			attr, err := r.Stat(ctx, name)
			require.NoError(t, err)
			dir := attr.Inode()
			look := func() (hits uint64, listing, entry error) {
				before := r.Stats().CacheHits
				_, listing = r.Inodes().ReadDirPage(ctx, dir, "", 0)
				_, entry = r.Inodes().Lookup(ctx, dir, "x")
				return r.Stats().CacheHits - before, listing, entry
			}
			_, err, _ = look()
			require.NoError(t, err)
			hits, err, _ := look()
			require.NoError(t, err)
			require.EqualValues(t, 2, hits, "%s is known", name)
			require.NoError(t, by.Remove(ctx, name))
			hits, err, missing := look()
			require.ErrorIs(t, err, moraine.NotFound, name)
			require.ErrorIs(t, missing, moraine.NotFound, name)
			require.Zero(t, hits, "only the service knows that %s is gone", name)
		}
	})
}

// A watch reports each change once, in order, and continues across a failover.
func TestAWatchGoesOnAcrossAFailover(t *testing.T) {
	inCluster(t, 1, func(ctx context.Context, c *incluster.Cluster) {
		w, r := open(t, ctx, c, "w", client.Config{}), open(t, ctx, c, "r", client.Config{})
		defer w.Close()
		defer r.Close()
		_, err := w.MkdirAll(ctx, "d/e", 0)
		require.NoError(t, err)
		events := make(chan client.Event, 1000)
		wctx, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e, err := range r.Watch(wctx, "d") {
				if err == nil {
					events <- e
				}
			}
		}()
		require.Equal(t, client.EventResync, (<-events).Kind)
		killed := ""
		for i := range 30 {
			if i == 10 {
				killed = c.Leader()
				c.Kill(killed)
			}
			_, err := w.Mkdir(ctx, fmt.Sprintf("d/e/%d", i), 0)
			require.NoError(t, err)
		}
		require.NoError(t, w.Rename(ctx, "d/e/3", "d/three", client.RenameOptions{}))
		for i := range 30 {
			e := <-events
			require.Equal(t, client.EventCreated, e.Kind)
			if i != 3 { // it may have been renamed by the time of the report
				require.Equal(t, fmt.Sprintf("e/%d", i), e.Path)
			}
		}
		e := <-events
		require.Equal(t, client.Event{Kind: client.EventRenamed, OldPath: "e/3", Path: "three", Inode: e.Inode,
			Type: client.TypeDirectory}, e)
		require.NoError(t, w.RemoveAll(ctx, "d"))
		stop()
		<-ended
		require.NoError(t, c.Restart(killed))
	})
}
