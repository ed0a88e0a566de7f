package mover_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// schemes are those of the file's stripes.
func (w *worn) schemes() map[moraine.Scheme]int {
	out := map[moraine.Scheme]int{}
	for _, s := range w.extents().Stripes {
		out[moraine.Scheme{K: uint8(s.Scheme.K), M: uint8(s.Scheme.M)}]++
	}
	return out
}

// TestRewritesKeepTheScheme: what is rewritten survives what it did before, whatever the
// policy says: a file that was written by a scheme of its own has none but stripes that
// survive as much afterwards, and the large ones are of that scheme.
func TestRewritesKeepTheScheme(t *testing.T) {
	for _, scheme := range []moraine.Scheme{moraine.Copies(4), {K: 8, M: 3}, {K: 4, M: 2}, moraine.Copies(2)} {
		t.Run(scheme.String(), func(t *testing.T) {
			opts := memcluster.Options{Hosts: 12, RewriteEvery: 20 * time.Second}
			if scheme.IsCopies() {
				opts.ChunkBytes = 256 << 10 // as large as is worth to be rewritten
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

// TestNothingIsRewrittenWhileAHostIsAway: neither begun nor leased while one is silent or
// announced to be away; it is once all are there.
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
	w.id = moraine.InodeID(attr.Inode)
	for _, s := range w.extents().Stripes {
		w.old[s.Id] = true
	}
}
