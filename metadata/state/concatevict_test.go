package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// Eviction and staging change the tables of a file, but not its bytes or generation. They may
// happen between two pieces that take one range. The result has each byte of the part exactly once.
func TestConcatOfPartsThatMoveMeanwhile(t *testing.T) {
	for before := 1; before < 4; before++ {
		t.Run(fmt.Sprint(before, " pieces before"), func(t *testing.T) {
			y := newTier(t)
			c := y.c
			_, ranges := c.parts(2, 3, 300)
			files := []uint64{c.walkTo("/parts/part-0"), c.walkTo("/parts/part-1")}
			var size, stored uint64
			for _, f := range files {
				c.fill(f, 2)
			}
			for _, r := range ranges {
				a := c.attr(r.Inode)
				r.Offset, r.Length, r.Generation = 0, a.Size, a.Generation
				size, stored = size+a.Size, stored+a.Size // an object is the whole of a file
			}
			y.queue(flushJob, files...)
			y.drain()
			job := c.concatJobOf(c.unnamed(), ranges, 0, false)
			pieces := func(n int, limit uint32) {
				for range n {
					y.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, limit)
				}
			}
			pieces(before, 4)
			y.evictAll(files)
			pieces(3, 4)
			y.queue(stageJob, files...)
			y.drain()
			pieces(20, 500)
			y.check()
			a := c.attr(c.walkTo("/whole"))
			if j := c.ended(job.Id); j.State != wire.JobState_JOB_STATE_DONE || a.Size != size || a.Stored > stored {
				t.Fatalf("the job ended %v, the whole is %v and not of %d bytes", j, a, size)
			}
			if *rewriteLogs && before == 2 {
				y.writeLog("v1-concat-retabled")
			}
		})
	}
}

// They may also happen between two pieces that clone one file of a tree.
func TestCloneOfTreeThatMovesMeanwhile(t *testing.T) {
	for before := range 8 {
		t.Run(fmt.Sprint(before, " pieces before"), func(t *testing.T) {
			y := newTier(t)
			c := y.c
			src := c.mkdir(c.root, "src")
			files := []uint64{c.mkfile(src, "f"), c.mkfile(src, "g")}
			for _, f := range files {
				c.fill(f, 4)
			}
			y.queue(flushJob, files...)
			y.drain()
			job := c.ok(c.cloneTree(src, c.root, "dst")).GetJobs().GetJobs()[0]
			for range before {
				y.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 4)
			}
			y.evictAll(files)
			for y.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 4) {
			}
			y.check()
			if j := c.ended(job.Id); j.State != wire.JobState_JOB_STATE_DONE || c.attr(c.walkTo("/dst/f")).Size != c.attr(files[0]).Size {
				t.Fatalf("the job ended %v", j)
			}
			if *rewriteLogs && before == 3 {
				y.writeLog("v1-clone-tree-retabled")
			}
		})
	}
}

// evictAll evicts files that are clean.
func (y *tier) evictAll(files []uint64) {
	y.t.Helper()
	y.queue(evictJob, files...)
	y.drain()
	for _, f := range files {
		if !y.c.attr(f).Evicted {
			y.t.Fatal("a file was not evicted: the test shows nothing")
		}
	}
}
