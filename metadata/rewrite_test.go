package metadata_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// wearing is a cluster of seven hosts with sparse files, and the client that makes them.
type wearing struct {
	*cluster
	nodes []*node
	k     *client
}

const rewriteEvery = 20 * time.Second

func wear(t *testing.T, fn func(w *wearing)) {
	bubble(t, func(cfg *metadata.Config) { cfg.RewriteEvery, cfg.RepairGrace = rewriteEvery, 30*time.Second }, func(c *cluster) {
		fn(&wearing{cluster: c, nodes: c.fleet(7), k: c.open(peer(transport.RoleClient, "c1"))})
	})
}

// worn makes a file of n stripes of 1 MiB each, with live bytes in use in each.
func (w *wearing) worn(name string, n int, live uint64, p *wire.Placement) (inode uint64) {
	w.t.Helper()
	g, err := w.k.grant(uint32(n), nil)
	require.NoError(w.t, err)
	resp, err := w.k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: root, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
	require.NoError(w.t, err)
	op := &wire.Commit{Inode: resp.GetEntry().Attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe)}
	for i := range n {
		at := g.Placements[i]
		if p != nil {
			at.Devices = p.Devices
		}
		s := &wire.Stripe{Id: at.Stripe, Scheme: at.Scheme, Version: 1, Length: 16 << 20}
		for j, d := range at.Devices {
			s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Crc: uint32(j), Level: uint32(moraine.NVMe)})
		}
		op.Stripes = append(op.Stripes, s)
		op.Extents = append(op.Extents, &wire.Extent{Offset: uint64(i) * s.Length, Length: live, Stripe: s.Id})
	}
	_, err = w.k.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
	require.NoError(w.t, err)
	return op.Inode
}

// leaseRewrites leases the available rewrites for a node.
func (n *node) leaseRewrites() []*wire.Job {
	n.c.t.Helper()
	resp, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REWRITE}, Max: 10}}})
	require.NoError(n.c.t, err)
	return resp.GetJobs().Jobs
}

// end reports a job as done.
func (n *node) end(j *wire.Job) {
	n.c.t.Helper()
	_, err := n.ask(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}})
	require.NoError(n.c.t, err)
}

// rewrites lists the jobs that have not ended.
func (w *wearing) rewrites() (out []*wire.Job) {
	w.t.Helper()
	resp, err := w.do(peer(transport.RoleAdmin, "ops"), &wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})
	require.NoError(w.t, err)
	for _, j := range resp.GetJobs().Jobs {
		if j.Kind == wire.JobKind_JOB_KIND_REWRITE {
			out = append(out, j)
		}
	}
	return out
}

// settle waits until written files are inspected: one pass and the next one.
func (w *wearing) settle(nodes ...*node) { w.pass(2*rewriteEvery+5*time.Second, nodes...) }

// TestRewriteJobsAreFew: however much must be rewritten, two jobs live at a time, waiting or
// leased, and each that ends makes room for one. A job has at most 64 stripes with at most 64 MiB
// in use.
func TestRewriteJobsAreFew(t *testing.T) {
	wear(t, func(w *wearing) {
		w.worn("many", 150, 1000, nil)
		w.worn("large", 60, 3<<20, nil)
		w.settle(w.nodes...)
		sizes := map[int]int{}
		for range 20 {
			waiting := w.rewrites()
			require.LessOrEqual(t, len(waiting), 2)
			held := w.nodes[0].leaseRewrites()
			require.Len(t, held, len(waiting))
			w.pass(4*time.Second, w.nodes...)
			require.LessOrEqual(t, len(w.rewrites()), 2, "while they are leased")
			for _, j := range held {
				sizes[len(j.Rewrite.Stripes)]++
				w.nodes[0].end(j)
			}
			w.pass(4*time.Second, w.nodes...)
		}
		require.Positive(t, sizes[64], "of little each: %v", sizes)
		require.Positive(t, sizes[21], "of 3 MiB each: %v", sizes)
		for n := range sizes {
			require.LessOrEqual(t, n, 64)
		}
	})
}

// TestNoRewritesWhileHostsAreMissing: while a host is silent or announced to be away, no rewrite is
// created and no earlier one is leased. Both resume when the host is back, or its chunks are
// elsewhere.
func TestNoRewritesWhileHostsAreMissing(t *testing.T) {
	wear(t, func(w *wearing) {
		p := &wire.Placement{Devices: []uint32{1, 2, 3, 4, 5, 6}} // n7 is empty
		w.worn("before", 1, 1000, p)
		w.settle(w.nodes...)
		require.Len(t, w.rewrites(), 1)
		others := w.nodes[:6]
		require.NoError(t, w.away("n7", 10*time.Minute, true))
		w.worn("f", 1, 1000, p)
		w.settle(w.nodes...)
		require.Len(t, w.rewrites(), 1, "none is made")
		require.Empty(t, w.nodes[0].leaseRewrites(), "none is begun")
		require.NoError(t, w.away("n7", 0, false))
		w.settle(w.nodes...)
		require.Len(t, w.rewrites(), 2)

		w.pass(10*time.Second, others...)
		require.Empty(t, w.nodes[0].leaseRewrites(), "n7 is silent")
		w.pass(time.Minute, others...)
		held := w.nodes[0].leaseRewrites()
		require.Len(t, held, 2, "its devices are out, and hold nothing")
		for _, j := range held {
			w.nodes[0].end(j)
		}
	})
}

// TestRewritesAfterRepairs: no rewrite is created while stripes are being repaired, and none for a
// stripe that waits for repair.
func TestRewritesAfterRepairs(t *testing.T) {
	wear(t, func(w *wearing) {
		w.worn("hurt", 1, 1000, &wire.Placement{Devices: []uint32{1, 2, 3, 4, 5, 6}})
		w.worn("sound", 1, 1000, &wire.Placement{Devices: []uint32{2, 3, 4, 5, 6, 7}})
		w.pass(5*time.Second, w.nodes...)
		hurt := w.k.stripeOf("hurt")
		w.pass(40*time.Second, w.nodes[1:]...) // n1 goes out, and a repair is made
		require.NotEmpty(t, w.nodes[1].lease(time.Second))
		w.settle(w.nodes[1:]...)
		require.Empty(t, w.rewrites(), "a repair is under way")
		for range 20 { // the mover fails repeatedly: its repair waits
			w.pass(10*time.Second, w.nodes[1:]...)
			for _, j := range w.rewrites() {
				require.NotContains(t, j.Rewrite.Stripes, hurt.Id)
			}
			for _, j := range w.nodes[1].lease(0) {
				_, err := w.nodes[1].ask(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
					Id: j.Id, LeaseEpoch: j.LeaseEpoch, Error: "in vain"}}})
				require.NoError(t, err)
			}
		}
	})
}
