package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// unlinkIn unlinks a file in the directory of step-10.
func (b *sealed) unlinkIn(name string) string {
	return kind(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: b.dir, Name: name}}}))
}

// later lets time pass and then runs the leader's tree removals.
func (b *sealed) later(millis uint64) {
	b.wall += int64(millis) * 1_000_000
	for ; millis > 0; millis -= min(millis, 1000) {
		b.tick(min(millis, 1000))
	}
	for {
		jobs, err := jobs.PendingJobs(b.m.View(b.kv), []wire.JobKind{wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES}, 10)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(jobs) == 0 {
			return
		}
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: jobs[0].Id, Limit: 20}}}).Response)
	}
}

func (b *sealed) inDir() (names []string, there bool) {
	resp := b.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: b.dir}}})
	for _, e := range resp.GetReadDir().GetEntries() {
		names = append(names, e.GetName())
	}
	return names, b.c.walk("/r/attempt-1/step-10").GetWalk().GetFound()
}

// TestARemovalThatStopsIsSweptUp: `rm -r` of a checkpoint stopped after it had unlinked the index.
// The leader removes the rest when nobody has touched it for a minute, except files that somebody
// added.
func TestARemovalThatStopsIsSweptUp(t *testing.T) {
	expect := func(b *sealed, when, want string) {
		t.Helper()
		names, there := b.inDir()
		if got := fmt.Sprint(names, there); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	t.Run("all of it", func(t *testing.T) {
		b := newSealed(t)
		if got := b.unlinkIn("part-0"); got != moraine.Immutable.String() {
			t.Errorf("a part before the index: %s", got)
		}
		b.later(120_000)
		expect(b, "before the index", "[index part-0] true")
		if got := b.unlinkIn("index"); got != "ok" {
			t.Fatalf("the index: %s", got)
		}
		b.later(30_000)
		expect(b, "half a minute later", "[part-0] true")
		b.later(61_000)
		expect(b, "when a minute has passed", "[] false")
		b.later(61_000)
		b.check()
		b.replays()
	})
	t.Run("not what somebody put there", func(t *testing.T) {
		b := newSealed(t)
		b.unlinkIn("index")
		b.c.mkfile(b.dir, "mine")
		b.later(300_000)
		expect(b, "later", "[mine] true")
		b.check()
		b.replays()
	})
	t.Run("while it is being emptied", func(t *testing.T) {
		b := newSealed(t)
		b.unlinkIn("index")
		b.later(59_000)
		b.c.mkfile(b.dir, "mine")
		if got := b.unlinkIn("mine"); got != "ok" {
			t.Fatal(got)
		}
		b.later(10_000)
		expect(b, "ten seconds after a change", "[part-0] true")
		if got := b.unlinkIn("part-0"); got != "ok" {
			t.Errorf("the part: %s", got)
		}
		if got := kind(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: b.attempt, Name: "step-10", Directory: true}}})); got != "ok" {
			t.Errorf("rmdir: %s", got)
		}
		b.later(120_000)
		expect(b, "at the end", "[] false")
		b.check()
		b.replays()
	})
	t.Run("a directory that somebody renamed", func(t *testing.T) {
		b := newSealed(t)
		b.unlinkIn("index")
		if got := kind(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: b.attempt, Name: "step-10", NewParent: b.other, NewName: "kept"}}})); got != "ok" {
			t.Fatal(got)
		}
		b.later(120_000)
		if names, _ := b.inDir(); fmt.Sprint(names) != "[part-0]" {
			t.Errorf("what was moved away: %s", names)
		}
		b.check()
		b.replays()
	})
}
