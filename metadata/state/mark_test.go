package state_test

import (
	"testing"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/statepb"
)

// mark makes a replica compare its sum with the proposer's mark and record its own.
func (b *bench) mark(compare *statepb.SumMark) state.Result {
	b.t.Helper()
	res := b.apply(&statepb.Command{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: 1, Mark: true, Compare: compare}}})
	b.ok(res.Response)
	return res
}

func (b *bench) noted() *statepb.SumMark {
	b.t.Helper()
	s, err := fleet.SumMark(b.m.View(b.kv))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// Two replicas that applied the same entries agree. A replica that applied one entry differently
// learns it at the second mark after that entry, and applies later entries as before.
func TestReplicasThatDifferAreFound(t *testing.T) {
	leader, follower := newCluster(t, 3), newCluster(t, 3)
	if leader.noted() != nil {
		t.Fatal("there is a mark that nobody asked for")
	}
	both := func(want bool) {
		t.Helper()
		compare := leader.noted()
		if leader.mark(compare).Events.Diverged {
			t.Fatal("the proposer differs from itself")
		}
		if got := follower.mark(compare).Events.Diverged; got != want {
			t.Fatalf("the follower differs: %v, want %v", got, want)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		both(false)
		for _, b := range []*bench{leader, follower} {
			c := b.open(nil)
			c.mkdir(c.root, name)
		}
	}
	leader.tick(5)
	follower.tick(6)
	both(false) // the sums from before are equal
	both(true)
	both(true)
	leader.check()
	follower.check()
}

// A mark made at another entry than the replica's own is not compared.
func TestMarksOfOtherEntriesAreNotCompared(t *testing.T) {
	b := newCluster(t, 1)
	b.mark(nil)
	old := b.noted()
	b.mark(nil)
	old.Sum_0++
	if b.mark(old).Events.Diverged {
		t.Error("the marks are of different entries")
	}
	wrong := b.noted()
	wrong.Sum_1++
	if !b.mark(wrong).Events.Diverged {
		t.Error("a wrong sum was not found")
	}
}
