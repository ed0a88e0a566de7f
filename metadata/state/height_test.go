package state_test

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// chain makes n nested directories and returns the innermost.
func (c *client) chain(at uint64, n int) uint64 {
	c.t.Helper()
	for range n {
		at = c.mkdir(at, "d")
	}
	return at
}

func (c *client) renameAs(op *wire.Rename) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: op}})
}

// No move makes what is below a directory deeper than MaxDepth, neither a rename nor an exchange of
// two names.
func TestNoRenameGoesPastTheDepth(t *testing.T) {
	b := newBench(t)
	c := b.open(nil)
	deep := c.mkdir(c.root, "deep")
	end := c.chain(deep, 400) // of level 401
	high := c.mkdir(c.root, "high")
	c.chain(high, 111) // is 112 levels, itself included
	fits := c.mkdir(c.root, "fits")
	c.chain(fits, 110)
	rename := func(name string, to uint64, newName string) string {
		return kind(c.renameAs(&wire.Rename{Parent: c.root, Name: name, NewParent: to, NewName: newName}))
	}
	if k := rename("high", end, "x"); k != "ok" {
		t.Errorf("as deep as can be: %s", k)
	}
	b.ok(c.renameAs(&wire.Rename{Parent: end, Name: "x", NewParent: c.root, NewName: "high"}))
	b.ok(c.create(&wire.Create{Parent: high, Name: "e", Type: wire.FileType_FILE_TYPE_DIRECTORY}))
	c.chain(c.walkTo("/high/e"), 111) // 113 with "high"
	if k := rename("high", end, "x"); k != "too large" {
		t.Errorf("one deeper: %s", k)
	}
	b.ok(c.create(&wire.Create{Parent: end, Name: "swap", Type: wire.FileType_FILE_TYPE_DIRECTORY}))
	if k := kind(c.renameAs(&wire.Rename{Parent: c.root, Name: "high", NewParent: end, NewName: "swap", Exchange: true})); k != "too large" {
		t.Errorf("an exchange: %s", k)
	}
	if k := rename("fits", end, "x"); k != "ok" {
		t.Errorf("one that fits: %s", k)
	}
	if k := rename("deep", c.root, "deeper"); k != "ok" {
		t.Errorf("a new name at the same depth: %s", k)
	}
	b.check()

	// The height of a directory can shrink again.
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: high, Name: "e"}}}))
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: high, Name: "d"}}}))
	if k := rename("high", end, "y"); k != "ok" {
		t.Errorf("what is not high any more: %s", k)
	}
	b.check()
}

// Moves that stack trees must not build a tree of unlimited depth: each change in it would cost as
// much as its depth.
func TestStackedTreesHaveABound(t *testing.T) {
	b := newBench(t)
	c := b.open(nil)
	c.chain(c.mkdir(c.root, "m"), 100)
	for n := range 4 {
		h := c.mkdir(c.root, "h")
		end := c.chain(h, 200)
		if k := kind(c.renameAs(&wire.Rename{Parent: c.root, Name: "m", NewParent: end, NewName: "m"})); k != "ok" {
			if k != "too large" || n != 2 {
				t.Errorf("round %d: %s", n, k)
			}
			b.check()
			return
		}
		b.ok(c.renameAs(&wire.Rename{Parent: c.root, Name: "h", NewParent: c.root, NewName: "m"}))
	}
	t.Error("no move was refused")
}

// The same holds for the clone of a tree. If its target directory moved deeper meanwhile and the
// clone would be too deep, the job fails without further retries.
func TestNoCloneGoesPastTheDepth(t *testing.T) {
	b := newBench(t)
	c := b.open(nil)
	src := c.mkdir(c.root, "src")
	c.chain(src, 100)
	deep := c.chain(c.mkdir(c.root, "deep"), 412) // of level 413: one too deep for it
	if k := kind(c.cloneTree(deep, src, "x")); k != "ok" {
		t.Fatalf("the other way around: %s", k)
	}
	if k := kind(c.cloneTree(src, deep, "x")); k != "too large" {
		t.Errorf("too deep from the first: %s", k)
	}
	to := c.mkdir(c.root, "to")
	id := b.ok(c.cloneTree(src, to, "x")).GetJobs().GetJobs()[0].GetId()
	b.ok(c.renameAs(&wire.Rename{Parent: c.root, Name: "to", NewParent: deep, NewName: "to"}))
	for n := 0; b.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 1000); n++ {
		if n == 1000 {
			t.Fatal("the job does not end")
		}
	}
	jobs := c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: id, Ended: true}}})).GetJobs().GetJobs()
	if len(jobs) != 1 || jobs[0].State != wire.JobState_JOB_STATE_FAILED {
		t.Errorf("the job is %v", jobs)
	}
	for b.runLeaderJob(wire.JobKind_JOB_KIND_REMOVE_TREE, 1000) {
	}
	b.check()
}
