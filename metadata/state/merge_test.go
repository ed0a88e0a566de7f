package state_test

import (
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// TestMergedTables merges tables of a file that were made one by one, at random ranges, and
// truncates the file, next to a clone. The content stays the same, every record is in order, no
// command is large, and at the end an overwrite of the whole file fits.
func TestMergedTables(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 3, 200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newCluster(t, 3)
		c := b.open(nil)
		f := c.mkfile(c.root, "f")
		const parts, size = 600, 10
		commit := func(g uint64, off, n uint64) *wire.MetaResponse {
			return c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY,
				Stripes: []*wire.Stripe{stripe(g, n, 1, 2, 3)}, Extents: []*wire.Extent{extent(off, n, g, 0)}})
		}
		g := c.grant(f, parts+1)
		for n := range uint64(parts) {
			if at := parts - 1 - n; n == 0 || rng.IntN(10) > 0 { // some holes
				b.ok(commit(g+n, at*size, size))
			}
		}
		twin := c.mkfile(c.root, "twin")
		if seed%2 == 1 { // whose tables are the same
			for n := range uint64(10) {
				b.ok(c.clone(&wire.Clone{Inode: twin, Mode: wire.CommitMode_COMMIT_MODE_APPEND,
					Ranges: []*wire.CloneRange{{Inode: f, Offset: n * 600, Length: 600}}}))
			}
		}
		listed := func(inode uint64) *wire.ExtentsReply { return b.ok(c.extents(inode, 0, 1000)).GetExtents() }
		same := func(what string, a, z *wire.ExtentsReply) {
			t.Helper()
			if !proto.Equal(&wire.ExtentsReply{Extents: a.Extents}, &wire.ExtentsReply{Extents: z.Extents}) {
				t.Fatalf("seed %d: %s changed from\n%v to\n%v", seed, what, a.Extents, z.Extents)
			}
			b.check()
		}
		was, wasTwin := listed(f), listed(twin)
		if got := kind(commit(g+parts, 0, parts*size)); got != "too large" {
			t.Fatalf("an overwrite of so many tables was answered %q", got)
		}
		bounded := func(req *wire.Commit) *wire.CommitReply {
			t.Helper()
			before := b.kv.Sets + b.kv.Deletes
			r := b.ok(c.commit(req)).GetCommit()
			if n := b.kv.Sets + b.kv.Deletes - before; n > largestCommand {
				t.Errorf("a command wrote %d records", n)
			}
			return r
		}
		merge := func(from, to uint64) {
			for from < to {
				r := bounded(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, MergeFrom: from, MergeTo: to})
				if r.MergedTo <= from || r.MergedTo > to && r.MergedTo != to {
					t.Fatalf("merged from %d to %d", from, r.MergedTo)
				}
				from = r.MergedTo
			}
		}
		for range 5 {
			from := rng.Uint64N(parts * size)
			merge(from, from+1+rng.Uint64N(2000))
			same("the file", was, listed(f))
			same("its clone", wasTwin, listed(twin))
		}
		// Truncated in the middle and near the beginning, or overwritten whole.
		switch seed % 3 {
		case 0:
			merge(0, parts*size)
			same("the file", was, listed(f))
			b.ok(commit(g+parts, 0, parts*size))
		case 1:
			b.ok(c.resize(f, 35))
		case 2:
			b.ok(c.resize(f, 0))
		}
		left := listed(f)
		for _, e := range left.Extents {
			if seed%3 == 1 && e.Offset+e.Length > 35 {
				t.Errorf("%v is past the end", e)
			}
		}
		same("its clone", wasTwin, listed(twin))
		for b.runLeaderJob(wire.JobKind_JOB_KIND_DROP_TABLES, 1000) {
		}
		b.check()
		same("its clone", wasTwin, listed(twin))
		same("what is left", left, listed(f))
	}
}

// TestMergesAreRefusedWithContent: one commit either changes content or merges tables.
func TestMergesAreRefusedWithContent(t *testing.T) {
	b := newCluster(t, 3)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	g := c.grant(f, 1)
	for _, op := range []*wire.Commit{
		{MergeTo: 10, Stripes: []*wire.Stripe{stripe(g, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, g, 0)}, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY},
		{MergeTo: 10, Mode: wire.CommitMode_COMMIT_MODE_REPLACE},
		{MergeTo: 10, MergeFrom: 10, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY},
		{MergeTo: 1 << 63, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY},
	} {
		op.Inode = f
		b.wants(c.commit(op), moraine.InvalidArgument)
	}
	b.check()
}
