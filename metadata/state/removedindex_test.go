package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// has counts the objects of flushedStep's checkpoint in the bucket.
func (y *tier) has() (index bool, parts int) {
	for key := range y.s.objects {
		index = index || strings.HasSuffix(key, "step-10/index")
		if strings.Contains(key, "step-10/part-") {
			parts++
		}
	}
	return index, parts
}

// whole fails the test if the bucket has the index of a checkpoint but not all its parts.
func (y *tier) whole() (objects int) {
	y.t.Helper()
	index, parts := y.has()
	if index && parts < 3 {
		y.t.Fatalf("the index is in the bucket, and %d of 3 parts", parts)
	}
	return len(y.s.objects)
}

// removals are the ways to remove a checkpoint.
var removals = []string{"rm step=1/10 force=yes", "rmtree attempt-1/step-10 force=yes", "the run"}

// removedWhole removes the checkpoint in each of the ways and lets two movers delete its objects.
func removedWhole(t *testing.T, ways []string, name string, crash *crash, fn func(y *tier)) {
	for _, how := range ways {
		t.Run(fmt.Sprintf("%s, %s", how, name), func(t *testing.T) {
			y, s := flushedStep(t, onCommit)
			y.runTrees()
			for n := 0; ; n++ {
				if index, _ := y.has(); index {
					break
				}
				if n == 100 {
					t.Fatal("the checkpoint was not flushed")
				}
				y.mover("n1").work()
				y.runTrees()
				y.wait(2)
			}
			if how == "the run" {
				y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: y.c.root, Name: "r", Force: true}}}))
			} else if out := s.run("a", words(how)); strings.Contains(out, ": ") {
				t.Fatal(out)
			}
			if crash != nil {
				again := *crash
				y.crash = &again
			}
			fn(y)
		})
	}
}

// TestTheIndexOfAStepIsDeletedFirst removes a flushed checkpoint and lets a mover die at each point
// of the deletions. The bucket has the index only while it has all parts, and nothing in the end.
func TestTheIndexOfAStepIsDeletedFirst(t *testing.T) {
	way := testseed.First(t)
	for _, how := range []string{"before", "after", "late"} {
		for at := range 12 {
			ways := removals
			if way++; !testseed.Long() { // each point in one way, others in other ways
				ways = removals[way%3:][:1]
			}
			removedWhole(t, ways, fmt.Sprintf("%s %d", how, at), &crash{at: at, how: how}, func(y *tier) {
				movers := []*miniMover{y.mover("n1"), y.mover("n2")}
				for n := 0; y.whole() > 0; n++ {
					if n == 300 {
						y.t.Fatalf("left: %v", y.s.objects)
					}
					y.runTrees()
					movers[n%2].work()
					y.whole()
					y.wait(5)
					if n == 20 {
						y.arrive() // the requests that were on their way to the store when the mover died
					}
				}
				y.check()
			})
		}
	}
}

// TestPartsStayWhileTheIndexCannotBeDeleted makes the store refuse to delete the index.
func TestPartsStayWhileTheIndexCannotBeDeleted(t *testing.T) {
	removedWhole(t, removals, "refused", nil, func(y *tier) {
		y.s.refuses = func(key string) bool { return strings.HasSuffix(key, "/index") }
		work := func(rounds int) {
			for range rounds {
				y.runTrees()
				y.mover("n1").work()
				y.mover("n2").work()
				y.whole()
				y.wait(10)
			}
		}
		work(60)
		if index, parts := y.has(); !index || parts != 3 {
			y.t.Fatalf("index: %t, %d parts", index, parts)
		}
		y.check()
		y.s.refuses = nil
		work(400)
		if len(y.s.objects) > 0 {
			y.t.Fatalf("left: %v", y.s.objects)
		}
		y.check()
	})
}
