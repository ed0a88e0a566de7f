package mover_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/memcluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

var rewriting = memcluster.Options{RewriteEvery: 20 * time.Second}

// worn is a file whose first stripe is mostly dead.
type worn struct {
	t    *testing.T
	c    *memcluster.Cluster
	cl   *client.Client
	id   moraine.InodeID
	data []byte
	old  map[uint64]bool // stripes that are mostly dead
	// scheme is the scheme of the file; zero: the policy's.
	scheme moraine.Scheme
}

// newWorn makes a file of 1 MB, and overwrites all of it but 40 pieces of 1,000 bytes.
func newWorn(t *testing.T, c *memcluster.Cluster) *worn {
	t.Helper()
	w := newFresh(t, c, "/f")
	w.wear()
	return w
}

// newFresh makes a file of 1 MB.
func newFresh(t *testing.T, c *memcluster.Cluster, name string) *worn {
	t.Helper()
	w := &worn{t: t, c: c, cl: c.Client("writer"), old: map[uint64]bool{}}
	c.AtStop(func() { w.cl.Close() })
	w.make(name, 1_000_000)
	return w
}

// wear overwrites all of the file but 40 pieces.
func (w *worn) wear() {
	w.t.Helper()
	for n := range 40 {
		w.write(n*25_000+1000, 24_000, uint64(n))
	}
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// write overwrites a part of the file, durably.
func (w *worn) write(off, n int, seed uint64) {
	w.t.Helper()
	h, err := w.cl.Inodes().OpenHandle(w.t.Context(), w.id, client.HandleOptions{Scheme: w.scheme})
	require.NoError(w.t, err)
	b := random(seed, n)
	_, err = h.WriteAt(w.t.Context(), b, int64(off))
	require.NoError(w.t, err)
	require.NoError(w.t, h.Sync(w.t.Context()))
	require.NoError(w.t, h.Close(w.t.Context()))
	copy(w.data[off:], b)
}

func (w *worn) extents() *wire.ExtentsReply {
	w.t.Helper()
	resp, err := w.c.Ask(transport.RoleAdmin, "admin", &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: uint64(w.id)}}})
	require.NoError(w.t, err)
	return resp.GetExtents()
}

// left is how many extents refer to mostly dead stripes.
func (w *worn) left() (n int) {
	w.t.Helper()
	for _, e := range w.extents().Extents {
		if w.old[e.Stripe] {
			n++
		}
	}
	return n
}

// holds reads the file again and compares it.
func (w *worn) holds() {
	w.t.Helper()
	cl := w.c.Client("reader")
	defer cl.Close()
	r, err := cl.Inodes().Open(w.t.Context(), w.id)
	require.NoError(w.t, err)
	defer r.Close()
	have := make([]byte, len(w.data)+1)
	n, err := r.ReadAt(w.t.Context(), have, 0)
	require.ErrorIs(w.t, err, io.EOF)
	require.True(w.t, bytes.Equal(have[:n], w.data), "the file reads as other bytes")
}

// rewritten waits until nothing refers to the old stripes, and no job is left.
func (w *worn) rewritten() {
	w.t.Helper()
	eventually(w.t, 5*time.Minute, "the stripes are rewritten", func() bool { return w.left() == 0 && len(running(w.t, w.c)) == 0 })
}

// TestRewritesMostlyDeadStripes: the live bytes of a mostly dead stripe end up in few new
// stripes, side by side. The file's generation stays, a reader that has it open continues, and
// nothing is rewritten twice.
func TestRewritesMostlyDeadStripes(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w := newWorn(t, c)
		require.Equal(t, 40, w.left())
		before := w.extents()
		r, err := w.cl.Inodes().Open(t.Context(), w.id)
		require.NoError(t, err)
		defer r.Close()
		startMover(t, c, "n1")
		w.rewritten()
		eventually(t, time.Minute, "the 40 pieces of 1,000 bytes are in one stripe, those of 24,000 in others of 256 KiB", func() bool {
			return len(w.extents().Stripes) == 5
		})
		after := w.extents()
		require.Equal(t, before.Attr.Generation, after.Attr.Generation)
		require.Equal(t, before.Attr.Mtime, after.Attr.Mtime)
		w.holds()
		have := make([]byte, len(w.data))
		require.NoError(t, r.ReadRange(t.Context(), have, 0))
		require.True(t, bytes.Equal(have, w.data))
		s := status(t, c).GetRewriting()
		require.EqualValues(t, len(w.old)+40, s.GetChosenStripes())
		require.EqualValues(t, len(w.data), s.GetChosenBytes())
		eventually(t, 2*time.Minute, "another look", func() bool {
			now := status(t, c).GetRewriting()
			return !now.GetLooking() && now.GetRounds() > s.GetRounds()+1
		})
		s = status(t, c).GetRewriting()
		require.Zero(t, s.GetChosenStripes(), "what was rewritten is not rewritten again")
		require.Zero(t, s.GetDeadBytes())
		require.EqualValues(t, len(w.data), s.GetNamedBytes())
	})
}

// TestPacksSmallStripes: a file made of many small durable writes ends up in few stripes and
// extents, and is then left alone; so is one that has few.
func TestPacksSmallStripes(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w, few := newFresh(t, c, "/f"), newFresh(t, c, "/g")
		for n := range 100 {
			w.data = append(w.data, make([]byte, 5000)...)
			w.write(len(w.data)-5000, 5000, uint64(n))
		}
		for n := range 7 {
			few.write(n*20_000, 5000, uint64(n))
		}
		before := w.extents()
		require.Len(t, before.Stripes, len(w.old)+100)
		untouched := few.extents()
		startMover(t, c, "n1")
		eventually(t, 5*time.Minute, "small stripes are put together", func() bool {
			return len(w.extents().Stripes) <= len(w.old)+4 && len(running(t, c)) == 0
		})
		after := w.extents()
		require.LessOrEqual(t, len(after.Extents), len(w.old)+4, "what follows each other is one extent")
		require.Equal(t, before.Attr.Generation, after.Attr.Generation)
		w.holds()
		few.holds()
		rounds := status(t, c).GetRewriting().GetRounds()
		eventually(t, 2*time.Minute, "more looks", func() bool { return status(t, c).GetRewriting().GetRounds() > rounds+2 })
		require.Equal(t, after.Extents, w.extents().Extents, "nothing is put together again")
		require.Equal(t, untouched.Extents, few.extents().Extents, "few are left alone")
	})
}

// TestRewriteFaults is the fault table of rewriting: each request of the mover fails once, and
// each takes effect once with a lost answer. In the end the bytes are right and the stripes are
// rewritten, by this job or by that of the next look.
func TestRewriteFaults(t *testing.T) {
	runs := testseed.Sample(t, 3)
	for _, op := range []string{"LeaseJobs", "GetExtents", "Grant", "CommitRewrite", "RenewJob", "FinishJob"} {
		for _, kind := range []moraine.Kind{moraine.Unavailable, moraine.Internal} {
			for _, lost := range []bool{false, true} {
				if !runs() {
					continue
				}
				t.Run(fmt.Sprintf("%s %s lost=%v", op, kind, lost), func(t *testing.T) {
					inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
						w := newWorn(t, c)
						hook, fired := once(op, kind, lost)
						if op == "RenewJob" { // longer than the time to a renewal
							for _, h := range c.Hosts {
								h.Before(func(_ context.Context, req any) error {
									if _, ok := req.(*wire.PutChunk); ok {
										time.Sleep(8 * time.Second)
									}
									return nil
								})
							}
						}
						c.OnMeta(hook)
						startMover(t, c, "n1")
						eventually(t, 5*time.Minute, "the fault", fired.Load)
						c.OnMeta(nil)
						w.rewritten()
						w.holds()
					})
				})
			}
		}
	}
}

// TestRewritesWhatFilesShare: a stripe of which two files use a little each is rewritten in
// both, and dies. One that clones share as a whole stays, and is reported.
func TestRewritesWhatFilesShare(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w := newWorn(t, c)
		a := w.extents().Attr
		part := func(name string, off, n uint64) *worn {
			_, err := w.cl.Inodes().CreateEmpty(t.Context(), moraine.InodeID(a.Parent), name, 0o644)
			require.NoError(t, err)
			attr, err := w.cl.Stat(t.Context(), "/"+name)
			require.NoError(t, err)
			_, err = rawclient.Of(w.cl).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: uint64(attr.Inode()),
				Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: a.Inode, Offset: off, Length: n}}}}})
			require.NoError(t, err)
			p := *w
			if n == 0 {
				n = uint64(len(w.data))
			}
			p.id, p.data = attr.Inode(), w.data[off:off+n]
			return &p
		}
		g, h := part("g", 0, 10_000), part("h", 250_000, 500)
		require.NotZero(t, g.left())
		require.NotZero(t, h.left())
		startMover(t, c, "n1")
		w.rewritten()
		g.rewritten()
		h.rewritten()
		for _, f := range []*worn{w, g, h} {
			f.holds()
		}

		w = newFresh(t, c, "/f2")
		a = w.extents().Attr
		part("all", 0, 0)
		w.wear()
		require.Equal(t, 40, w.left())
		rounds := status(t, c).GetRewriting().GetRounds()
		eventually(t, 2*time.Minute, "more looks", func() bool { return status(t, c).GetRewriting().GetRounds() > rounds+2 })
		require.Equal(t, 40, w.left(), "the clone names all of it")
		w.holds()
		require.NoError(t, w.cl.Remove(t.Context(), "/all"))
		w.rewritten()
		w.holds()
	})
}

// TestRewriteBesideAWriter: a writer overwrites a part of what a mover has read, just before it
// commits. The file has the writer's bytes, and the rest is rewritten later. At first this
// happens to each commit of the mover.
func TestRewriteBesideAWriter(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w := newWorn(t, c)
		var met atomic.Int32
		c.OnMeta(func(req *wire.MetaRequest) (func(*wire.MetaResponse, error) (*wire.MetaResponse, error), error) {
			if n := int(met.Load()); opOf(req) == "CommitRewrite" && n < 4 && met.CompareAndSwap(int32(n), int32(n+1)) {
				w.write(n*25_000+500, 100, uint64(100+n))
			}
			return nil, nil
		})
		startMover(t, c, "n1")
		startMover(t, c, "n2")
		eventually(t, 5*time.Minute, "writers that come between", func() bool { return met.Load() == 4 })
		w.rewritten()
		w.holds()
	})
}

// TestRewriteOfALostMover: the mover stops during its puts; another finishes.
func TestRewriteOfALostMover(t *testing.T) {
	inCluster(t, rewriting, func(t *testing.T, c *memcluster.Cluster) {
		w := newWorn(t, c)
		began := make(chan struct{}, 100)
		for _, h := range c.Hosts {
			h.Before(func(_ context.Context, req any) error {
				if _, ok := req.(*wire.PutChunk); ok {
					began <- struct{}{}
					time.Sleep(time.Second)
				}
				return nil
			})
		}
		stop := startMover(t, c, "n1")
		<-began
		stop()
		for _, h := range c.Hosts {
			h.Before(nil)
		}
		require.NotZero(t, w.left())
		startMover(t, c, "n2")
		w.rewritten()
		w.holds()
	})
}
