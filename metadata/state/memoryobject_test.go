package state_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// memoryHeirs are the ways in which another file shares bytes that are only in memory although the
// first file also has them in an object. Each returns the path of that other file.
var memoryHeirs = []struct {
	name string
	do   func(y *tier, f uint64) string
}{
	{"append at nvme", func(y *tier, f uint64) string { y.write(f, 10); return "f" }},
	{"overlay at nvme", func(y *tier, f uint64) string {
		g := y.c.grant(f, 1)
		y.ok(y.c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: uint32(moraine.NVMe),
			Stripes: []*wire.Stripe{stripe(g, 5, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 5, g, 0)}}))
		return "f"
	}},
	{"truncated", func(y *tier, f uint64) string { y.ok(y.c.resize(f, 15)); return "f" }},
	{"another file appended", func(y *tier, f uint64) string {
		h := y.c.mkfile(y.c.root, "h")
		y.write(h, 10)
		y.ok(y.c.clone(&wire.Clone{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Ranges: []*wire.CloneRange{{Inode: h}}}))
		return "f"
	}},
	{"staged to memory, and appended to", func(y *tier, f uint64) string {
		y.queue(evictJob, f)
		y.drain()
		y.raise()
		y.stagedIn = y.inRAM
		y.queue(stageJob, f)
		y.drain()
		y.raise()
		y.write(f, 10)
		return "f"
	}},
	{"clone", func(y *tier, f uint64) string { return y.cloneOf(&wire.CloneRange{Inode: f}) }},
	{"clone of a part", func(y *tier, f uint64) string { return y.cloneOf(&wire.CloneRange{Inode: f, Offset: 3, Length: 10}) }},
	{"clone of a tree", func(y *tier, f uint64) string {
		y.rename(y.c.root, "f", y.c.mkdir(y.c.root, "d"), "f")
		y.ok(y.c.cloneTree(y.c.walkTo("/d"), y.c.root, "e"))
		for y.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 4) {
		}
		return "e/f"
	}},
	{"concatenated", func(y *tier, f uint64) string {
		y.ok(y.c.concat(&wire.Concat{Inode: y.c.unnamed(), Ranges: []*wire.CloneRange{{Inode: f}}, Link: &wire.LinkTarget{Parent: y.c.root, Name: "g"}}))
		return "g"
	}},
	{"concatenated by a job", func(y *tier, f uint64) string {
		y.c.concatJobOf(y.c.unnamed(), slices.Repeat([]*wire.CloneRange{{Inode: f}}, 600), 0, false)
		for y.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 4) {
			y.check()
		}
		return "whole"
	}},
}

// cloneOf makes file g of a range.
func (y *tier) cloneOf(r *wire.CloneRange) string {
	y.t.Helper()
	g := y.c.mkfile(y.c.root, "g")
	y.ok(y.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{r}}))
	return "g"
}

// loseMemory makes every host lose its memory.
func (y *tier) loseMemory() {
	y.t.Helper()
	for d := uint32(1); d <= 3; d++ {
		y.registerHost(fmt.Sprintf("n%d", d), 1)
		y.ok(y.tell(d, y.epochOf(d), allGone))
	}
}

// TestMemoryBesideAnObject: an object may have bytes whose chunks are still only in memory. A file
// with those chunks and without the object is at level memory. It rises when the chunks are on
// devices and is lost when they are gone.
func TestMemoryBesideAnObject(t *testing.T) {
	for _, way := range memoryHeirs {
		for _, lose := range []bool{false, true} {
			t.Run(fmt.Sprint(way.name, "/lost=", lose), func(t *testing.T) {
				y := newTier(t)
				f := y.c.save("f", []uint32{1, 2}, []uint32{2, 3})
				y.queue(flushJob, f)
				y.drain()
				if a := y.c.attr(f); !a.Clean || a.Level != uint32(moraine.Object) {
					t.Fatalf("flushed it is %v", a)
				}
				path := way.do(y, f)
				y.check()
				g := y.c.walkTo("/" + path)
				y.c.wantLevel(g, moraine.Memory)
				y.check()
				if lose {
					y.loseMemory()
					y.c.wantLevel(g, 0)
					if have := y.c.lostFiles(); len(have) != 1 || have[0][:len(path)+1] != path+" " {
						t.Errorf("lost: %q, want %s", have, path)
					}
				} else {
					for d := uint32(1); d <= 3; d++ {
						y.ok(y.tell(d, 1, allHere))
					}
					y.c.wantLevel(g, moraine.NVMe)
				}
				y.check()
				y.replays()
				if lose && path == "e/f" {
					y.keepLog("v1-memory-in-object")
				}
			})
		}
	}
}

// TestConcatOfMemoryThatIsEvictedMeanwhile: the part of a file that a concatenation took before the
// file's eviction is still in memory as it was.
func TestConcatOfMemoryThatIsEvictedMeanwhile(t *testing.T) {
	for before := 1; before < 4; before++ {
		y := newTier(t)
		f := y.c.mkfile(y.c.root, "f")
		for range 4 {
			g := y.c.grant(f, 1)
			op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{y.inRAM(g, 512, 1, 2)}}
			for n := range uint64(256) {
				op.Extents = append(op.Extents, extent(2*n, 1, g, 2*n))
			}
			y.ok(y.c.commit(op))
		}
		y.queue(flushJob, f)
		y.drain()
		a := y.c.attr(f)
		var ranges []*wire.CloneRange
		for range 300 {
			ranges = append(ranges, &wire.CloneRange{Inode: f, Generation: a.Generation, Length: a.Size})
		}
		y.c.concatJobOf(y.c.unnamed(), ranges, 0, false)
		for range before {
			y.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 4)
			y.check()
		}
		y.evictAll([]uint64{f})
		y.raise()
		for y.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 500) {
			y.check()
		}
		y.loseMemory()
		y.c.wantLevel(y.c.walkTo("/whole"), 0)
		y.check()
	}
}

// TestEvictionMendsWhatAnObjectHas: if lost memory is also in an object, the file is not lost.
// After eviction it refers only to the object.
func TestEvictionMendsWhatAnObjectHas(t *testing.T) {
	y := newTier(t)
	f := y.c.save("f", []uint32{1, 2}, []uint32{2, 3})
	y.queue(flushJob, f)
	y.drain()
	y.loseMemory()
	y.c.wantLevel(f, moraine.Object)
	if have := y.c.lostFiles(); have != nil {
		t.Errorf("lost: %q", have)
	}
	y.evictAll([]uint64{f})
	y.c.wantLevel(f, moraine.Object)
	for _, e := range y.c.ok(y.c.extents(f, 0, 100)).GetExtents().Extents {
		if e.Object == 0 {
			t.Errorf("evicted it has %v", e)
		}
	}
	y.sound(f)
	y.replays()
}
