package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// A batch of removals, or of commits that replace contents, deletes small contents itself up to a bound. Jobs delete the
// others, and no change fails.
func TestABatchOfRemovalsIsBounded(t *testing.T) {
	for name, change := range map[string]func(dir, file uint64, name string) *wire.BatchOp{
		"removals": func(dir, _ uint64, name string) *wire.BatchOp { return removing(dir, name, false) },
		"commits": func(_, file uint64, _ string) *wire.BatchOp {
			return &wire.BatchOp{Op: &wire.BatchOp_Commit{Commit: &wire.Commit{Inode: file, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: letters(10)}}}
		},
		"replacing renames": func(dir, _ uint64, name string) *wire.BatchOp { return renaming(dir, "from"+name, dir, name) },
	} {
		t.Run(name, func(t *testing.T) { batchIsBounded(t, change) })
	}
}

func batchIsBounded(t *testing.T, change func(dir, file uint64, name string) *wire.BatchOp) {
	const files, stripes, bound = 400, 12, 32*512 + 400*24
	b := newCluster(t, 3)
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	var changes []*wire.BatchOp
	for n := range files {
		name := fmt.Sprint(n)
		f := c.mkfile(dir, name)
		c.mkfile(dir, "from"+name)
		g := c.grant(f, stripes)
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND}
		for s := range uint64(stripes) {
			op.Stripes = append(op.Stripes, stripe(g+s, 10, 1, 2, 3))
			op.Extents = append(op.Extents, extent(10*s, 10, g+s, 0))
		}
		c.ok(c.commit(op))
		c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: g}}}))
		changes = append(changes, change(dir, f, name))
	}
	c.delegate(dir, 0)
	before := b.kv.Sets + b.kv.Deletes
	for n, kind := range c.batch(changes...) {
		if kind != "ok" {
			t.Fatalf("change %d: %s", n, kind)
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
