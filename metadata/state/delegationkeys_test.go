package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// A batch of removals deletes small contents itself up to a bound. Jobs delete the others, and no
// removal fails.
func TestABatchOfRemovalsIsBounded(t *testing.T) {
	const files, stripes, bound = 400, 12, 32*512 + 400*24
	b := newCluster(t, 3)
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	var removals []*wire.BatchOp
	for n := range files {
		name := fmt.Sprint(n)
		f := c.mkfile(dir, name)
		g := c.grant(f, stripes)
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND}
		for s := range uint64(stripes) {
			op.Stripes = append(op.Stripes, stripe(g+s, 10, 1, 2, 3))
			op.Extents = append(op.Extents, extent(10*s, 10, g+s, 0))
		}
		c.ok(c.commit(op))
		c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g}}}))
		removals = append(removals, removing(dir, name, false))
	}
	c.delegate(dir, 0)
	before := b.kv.Sets + b.kv.Deletes
	for n, kind := range c.batch(removals...) {
		if kind != "ok" {
			t.Fatalf("removal %d: %s", n, kind)
		}
	}
	wrote := b.kv.Sets + b.kv.Deletes - before
	if wrote > bound {
		t.Errorf("the batch wrote %d keys", wrote)
	}
	jobs := 0
	for b.runLeaderJob(wire.JobKind_JOB_KIND_DROP_TABLES, 1000) {
		jobs++
	}
	if jobs == 0 || jobs >= files {
		t.Errorf("%d jobs deleted contents", jobs)
	}
	b.check()
}
