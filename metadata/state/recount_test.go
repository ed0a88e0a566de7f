package state_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// Whatever happens after any piece of a recount, it finds the one wrong count and no other. In the
// end every count agrees with the records.
func TestRecountFaults(t *testing.T) {
	faults := []struct {
		name string
		do   func(c *client)
	}{
		{"nothing", func(*client) {}},
		{"a file grows", func(c *client) { c.ok(c.resize(c.walkTo("/a/b/f"), 900)) }},
		{"a file is made", func(c *client) { c.file(c.walkTo("/a/c"), "new", 7) }},
		{"a file goes", func(c *client) { c.ok(c.remove(&wire.Remove{Parent: c.walkTo("/a/b"), Name: "f"})) }},
		{"a tree moves up", func(c *client) {
			c.ok(c.rename(&wire.Rename{Parent: c.walkTo("/a/b"), Name: "deep", NewParent: c.root, NewName: "deep"}))
		}},
		{"a tree moves down", func(c *client) {
			c.ok(c.rename(&wire.Rename{Parent: c.root, Name: "z", NewParent: c.walkTo("/a/b/deep"), NewName: "z"}))
		}},
		{"a tree is removed", func(c *client) { c.ok(c.removeTree(c.walkTo("/a"), "b")) }},
		{"a tree is cloned", func(c *client) {
			c.ok(c.cloneTree(c.walkTo("/a/b"), c.root, "copy"))
			for c.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 30) {
			}
		}},
		{"it is asked for again", func(c *client) { c.recount() }},
		{"it is to be canceled", func(c *client) {
			jobs, err := jobs.PendingJobs(c.m.View(c.kv), []wire.JobKind{wire.JobKind_JOB_KIND_RECOUNT}, 1)
			if err != nil || len(jobs) != 1 {
				c.t.Fatalf("%d recounts are under way (%v)", len(jobs), err)
			}
			if k := kind(c.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: jobs[0].Id}}})); k != "invalid argument" {
				c.t.Errorf("a recount was canceled: %s", k)
			}
		}},
		{"a quota is set", func(c *client) { c.ok(c.setQuota(c.walkTo("/a"), 1<<20, 1000)) }},
		{"the session ends", func(c *client) {
			c.ok(c.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
			*c = *c.bench.open(nil)
		}},
	}
	runs := testseed.Sample(t, 5)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			for after := 0; ; after++ {
				if !runs() {
					continue
				}
				bn := newCluster(t, 1)
				c := bn.open(nil)
				a := c.mkdir(c.root, "a")
				for _, name := range []string{"b", "c"} {
					dir := c.mkdir(a, name)
					c.file(dir, "f", 10)
					deep := c.mkdir(dir, "deep")
					for n := range 4 {
						c.file(c.mkdir(deep, fmt.Sprint(n)), "f", 3)
					}
				}
				c.file(c.mkdir(c.root, "z"), "f", 1000)
				damaged := c.walkTo("/a/c/deep")
				if err := bn.kv.Set(binary.BigEndian.AppendUint64([]byte{0, 0, 0x60, 1}, damaged), []byte{1, 2, 2}); err != nil {
					t.Fatal(err)
				}
				id := bn.recount().Id
				for range after {
					bn.runLeaderJob(wire.JobKind_JOB_KIND_RECOUNT, 7)
				}
				if c.ended(id).State != wire.JobState_JOB_STATE_PENDING {
					if after < 8 {
						t.Fatalf("the recount took %d pieces: too few for this test", after)
					}
					return
				}
				f.do(c)
				for bn.runLeaderJob(wire.JobKind_JOB_KIND_RECOUNT, 7) {
				}
				// The last piece again, from a leader that did not receive the answer.
				bn.ok(bn.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: id, Limit: 7}}}).Response)
				j := c.ended(id)
				if j.State != wire.JobState_JOB_STATE_DONE || !strings.Contains(j.Error, "the counts of 1 directories were wrong") {
					t.Fatalf("after %d pieces: the recount ended %s: %q", after, j.State, j.Error)
				}
				checkCounts(bn)
			}
		})
	}
}

// checkCounts compares every count with the records. It ignores the running sum, because the test
// damaged a count on purpose.
func checkCounts(b *bench) {
	b.t.Helper()
	problems, err := check.Check(b.m.View(b.store()))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p, "the running sum is") {
			b.t.Fatalf("check: %s", p)
		}
	}
}

// TestLogsOfServersAndRecounts makes the golden logs of a recount while the tree changes, and of
// the directories of metadata servers.
func TestLogsOfServersAndRecounts(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	a := c.mkdir(c.root, "a")
	for n := range 10 {
		c.file(c.mkdir(a, fmt.Sprint(n)), "f", 10)
	}
	id := bn.recount().Id
	for n := 0; bn.runLeaderJob(wire.JobKind_JOB_KIND_RECOUNT, 9); n++ {
		c.file(a, fmt.Sprint("new", n), 5)
	}
	if j := c.ended(id); j.State != wire.JobState_JOB_STATE_DONE || j.Error != "" {
		t.Errorf("the recount ended %s: %q", j.State, j.Error)
	}
	bn.check()
	if *rewriteLogs {
		bn.writeLog("v1-recount")
	}
	bn = newBench(t)
	for n, id := range []string{"m1", "m2", "m1", "m3", "m1"} {
		dir := make([]byte, 16)
		dir[0] = byte(n % 4) // m1 again, with its own directory and with another server's
		if id == "m1" && n < 4 {
			dir[0] = 0
		}
		want := "ok"
		if n == 4 {
			dir[0], want = 9, "conflict"
		}
		if k := kind(bn.apply(&statepb.Command{Op: &statepb.Command_SetMember{SetMember: &statepb.SetMember{Id: id, DataId: dir}}}).Response); k != want {
			t.Errorf("%s with directory %d: %s, want %s", id, dir[0], k, want)
		}
	}
	bn.check()
	if *rewriteLogs {
		bn.writeLog("v1-members")
	}
}
