package mover_test

import (
	"context"
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

// schemes counts the schemes of the file's stripes.
func (w *worn) schemes() map[moraine.Scheme]int {
	out := map[moraine.Scheme]int{}
	for _, s := range w.extents().Stripes {
		out[moraine.Scheme{K: uint8(s.Scheme.K), M: uint8(s.Scheme.M)}]++
	}
	return out
}

// TestRewritesKeepTheScheme: rewritten bytes keep their protection, whatever the policy says. A
// file written with its own scheme afterwards has only stripes with at least that protection,
// and the large ones have that scheme.
func TestRewritesKeepTheScheme(t *testing.T) {
	for _, scheme := range []moraine.Scheme{moraine.Copies(4), {K: 8, M: 3}, {K: 4, M: 2}, moraine.Copies(2)} {
		t.Run(scheme.String(), func(t *testing.T) {
			opts := memcluster.Options{Hosts: 12, RewriteEvery: 20 * time.Second}
			if scheme.IsCopies() {
				opts.ChunkBytes = 256 << 10 // large enough to be rewritten
			}
			inCluster(t, opts, func(t *testing.T, c *memcluster.Cluster) {
				w := &worn{t: t, c: c, cl: c.Client("writer"), old: map[uint64]bool{}, scheme: scheme}
				c.AtStop(func() { w.cl.Close() })
				w.make("/f", 1_000_000)
				w.wear()
				require.NotZero(t, w.left())
				startMover(t, c, "n1")
				w.rewritten()
				for s, n := range w.schemes() {
					require.GreaterOrEqual(t, s.M, scheme.M, "%d stripes of %s", n, s)
				}
				require.NotZero(t, w.schemes()[scheme])
				w.holds()
			})
		})
	}
}

// TestNothingIsRewrittenWhileAHostIsAway: no rewrite is queued or leased while a host is silent
// or announced as away; it starts once all are up.
func TestNothingIsRewrittenWhileAHostIsAway(t *testing.T) {
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
				w := newWorn(t, c)
				away := func(d time.Duration) {
					_, err := c.Ask(transport.RoleAdmin, "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{
						Host: "n6", Millis: uint64(d.Milliseconds())}}})
					require.NoError(t, err)
				}
				if silent {
					c.Hosts[5].Kill()
				} else {
					away(time.Hour)
				}
				startMover(t, c, "n1")
				time.Sleep(2 * time.Minute)
				require.Equal(t, 40, w.left())
				require.Empty(t, running(t, c))
				if silent {
					c.Hosts[5].Start()
				} else {
					away(0)
				}
				w.rewritten()
				w.holds()
			})
		})
	}
}

// make makes the file, of n bytes.
func (w *worn) make(name string, n int) {
	w.t.Helper()
	f, err := w.cl.Create(w.t.Context(), name, client.CreateOptions{Scheme: w.scheme})
	require.NoError(w.t, err)
	w.data = random(1, n)
	_, err = f.Write(w.data)
	require.NoError(w.t, err)
	_, err = f.Commit(w.t.Context())
	require.NoError(w.t, err)
	attr, err := w.cl.Stat(w.t.Context(), name)
	require.NoError(w.t, err)
	w.id = attr.Inode()
	for _, s := range w.extents().Stripes {
		w.old[s.Id] = true
	}
}

// TestRewriteGoesOnPastABadStripe: one stripe of a job is unreadable. The mover rewrites the
// others, the job says what was wrong, and a later job rewrites that one once it is readable.
func TestRewriteGoesOnPastABadStripe(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w := newWorn(t, c)
		bad := w.extents().Extents[0].Stripe // the first of the job
		require.True(t, w.old[bad])
		require.Greater(t, len(w.old), 2)
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				if get, ok := req.(*wire.GetChunk); ok && get.GetStripe() == bad {
					return &moraine.Error{Kind: moraine.IOError}
				}
				return nil
			})
		}
		startMover(t, c, "n1")
		others := func() (n int) {
			for _, e := range w.extents().Extents {
				if w.old[e.Stripe] && e.Stripe != bad {
					n++
				}
			}
			return n
		}
		eventually(t, 10*time.Minute, "all but the bad one are rewritten", func() bool { return others() == 0 })
		require.NotZero(t, w.left())
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		w.rewritten()
		w.holds()
	})
}

// TestRewriteOfARemovedFile: the file is removed before the commit. The job succeeds, because
// there is nothing left to do.
func TestRewriteOfARemovedFile(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w := newWorn(t, c)
		var once sync.Once
		var failed atomic.Bool
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			switch opOf(req) {
			case "CommitRewrite":
				once.Do(func() { require.NoError(t, w.cl.Remove(t.Context(), "/f")) })
			case "FinishJob":
				failed.Store(failed.Load() || req.GetFinishJob().Error != "")
			}
			return nil, nil
		})
		startMover(t, c, "n1")
		eventually(t, 5*time.Minute, "the file is gone", func() bool {
			_, err := w.cl.Stat(t.Context(), "/f")
			return err != nil
		})
		eventually(t, 5*time.Minute, "the job has ended", func() bool { return len(running(t, c)) == 0 })
		require.False(t, failed.Load())
	})
}
