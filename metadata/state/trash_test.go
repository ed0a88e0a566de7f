package state_test

import (
	"math"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func (c *client) setTrash(dir, millis uint64) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: dir, Policy: &wire.Policy{TrashMillis: millis}}}})
}

// namesAt lists a directory.
func (c *client) namesAt(path string) (names []string) {
	c.t.Helper()
	for _, e := range c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: c.walkTo(path)}}})).GetReadDir().GetEntries() {
		names = append(names, e.Name)
	}
	return names
}

// hour is the path of the only hour of a directory's trash.
func (c *client) hour(dir string) string {
	c.t.Helper()
	hours := c.namesAt(dir + "/.trash")
	if len(hours) != 1 {
		c.t.Fatalf("the trash has %q", hours)
	}
	return dir + "/.trash/" + hours[0]
}

// in fails unless the inode has the path.
func (c *client) in(path string, inode uint64) {
	c.t.Helper()
	if !c.exists(path) || c.walkTo(path) != inode {
		c.t.Errorf("%s is not inode %d", path, inode)
	}
	c.check()
}

const hourMillis = 3_600_000

// Below a directory with a trash, what loses its last name goes there, at its path, in the entry
// that removes it, whatever removes it.
func TestTrash(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	top := c.mkdir(c.root, "top")
	a := c.mkdir(top, "a")
	b := c.mkdir(a, "b")
	c.mkfile(b, "early")
	c.ok(c.remove(&wire.Remove{Parent: b, Name: "early"}))
	if c.exists("/top/.trash") {
		t.Fatal("there is a trash without a policy")
	}
	for _, wrong := range []uint64{2, 59_999, 1 << 40} {
		if resp := c.setTrash(top, wrong); moraine.Kind(resp.GetError().GetKind()) != moraine.InvalidArgument {
			t.Errorf("a trash of %d ms: %v", wrong, resp)
		}
	}
	c.ok(c.setTrash(top, hourMillis))

	x := c.file(b, "x", 100)
	c.ok(c.remove(&wire.Remove{Parent: b, Name: "x"}))
	hour := c.hour("/top")
	c.in(hour+"/a/b/x", x)
	again := c.file(b, "x", 100)
	c.ok(c.remove(&wire.Remove{Parent: b, Name: "x", Keep: true}))
	c.in(hour+"/a/b/x."+moraine.InodeID(again).String(), again)
	c.ok(c.release(again)) // its session does not have it
	c.in(hour+"/a/b/x."+moraine.InodeID(again).String(), again)

	over, new := c.mkfile(a, "over"), c.mkfile(a, "new")
	c.ok(c.rename(&wire.Rename{Parent: a, Name: "new", NewParent: a, NewName: "over"}))
	c.in(hour+"/a/over", over)
	c.in("/top/a/over", new)
	committed := c.unnamed()
	c.ok(c.commit(&wire.Commit{Inode: committed, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Link: &wire.LinkTarget{Parent: a, Name: "over", Replace: true}}))
	c.in(hour+"/a/over."+moraine.InodeID(new).String(), new)

	two := c.mkfile(a, "one")
	c.ok(c.link(two, a, "two"))
	c.ok(c.remove(&wire.Remove{Parent: a, Name: "one"}))
	c.in("/top/a/two", two)
	if c.exists(hour + "/a/one") {
		t.Error("a name of a file with two is in the trash")
	}
	c.mkdir(a, "empty")
	c.ok(c.remove(&wire.Remove{Parent: a, Name: "empty", Directory: true}))
	if c.exists(hour + "/a/empty") {
		t.Error("an empty directory is in the trash")
	}
	c.mkdir(a, "empty")
	c.ok(c.removeTree(a, "empty"))
	if c.exists(hour+"/a/empty") || c.exists("/top/a/empty") {
		t.Error("the removal of an empty tree has put it in the trash, or left it")
	}
	hidden := c.mkfile(a, ".trash")
	c.ok(c.remove(&wire.Remove{Parent: a, Name: ".trash"}))
	c.in(hour+"/a/.trash", hidden) // a file of this name is like any other
	used := c.usage(top)
	kept := c.file(a, "kept", 100)
	c.ok(c.remove(&wire.Remove{Parent: a, Name: "kept"}))
	c.in(hour+"/a/kept", kept)
	if now := c.usage(top); now[0] != used[0]+100 || now[1] != used[1]+1 {
		t.Errorf("the directory uses %v with a file of 100 bytes more in its trash, %v before", now, used)
	}

	c.ok(c.setTrash(c.mkdir(top, "off"), 1))
	c.mkfile(c.walkTo("/top/off"), "y")
	c.ok(c.remove(&wire.Remove{Parent: c.walkTo("/top/off"), Name: "y"}))
	if c.exists(hour+"/off") || c.exists("/top/off/.trash") {
		t.Error("what is removed where the trash is off is in the trash")
	}

	c.ok(c.removeTree(top, "a"))
	c.in(hour+"/a."+moraine.InodeID(a).String()+"/two", two)
	c.ok(c.rename(&wire.Rename{Parent: c.walkTo(hour), Name: "a." + moraine.InodeID(a).String(), NewParent: top, NewName: "a"}))
	c.in("/top/a/two", two)

	c.ok(c.setQuota(top, 0, c.usage(top)[1]))
	c.ok(c.remove(&wire.Remove{Parent: a, Name: "two"})) // also if there is no room for the directories of the trash
	c.in(hour+"/a/two", two)

	c.ok(c.remove(&wire.Remove{Parent: c.walkTo(hour + "/a/b"), Name: "x"}))
	c.ok(c.removeTree(c.walkTo(hour), "a"))
	bn.settleJobs()
	bn.check()
	if have := c.namesAt(hour); len(have) > 0 {
		t.Errorf("what was removed from the trash is there: %q", have)
	}
}

// A checkpoint does not go to the trash, whatever removes it.
func TestCheckpointsDoNotGoToTheTrash(t *testing.T) {
	for _, how := range removals {
		t.Run(how, func(t *testing.T) {
			y, s := flushedStep(t, onCommit)
			y.ok(y.setPolicy(y.c.root, &wire.Policy{TrashMillis: hourMillis}))
			if how == "the run" {
				y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: y.c.root, Name: "r", Force: true}}}))
			} else if out := s.run("a", words(how)); strings.Contains(out, ": ") {
				t.Fatal(out)
			}
			if y.c.exists("/.trash") || y.c.exists("/r/attempt-1/step-10") {
				t.Error("the checkpoint is in the trash, or where it was")
			}
			y.check()
		})
	}
}

// The trash of an hour goes when the policy's time has passed since the hour's end, unless somebody
// moved it away.
func TestTrashIsEmptied(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	top := c.mkdir(c.root, "top")
	c.ok(c.setTrash(top, 24*hourMillis))
	remove := func(name string) {
		c.file(top, name, 10)
		c.ok(c.remove(&wire.Remove{Parent: top, Name: name}))
	}
	ready := func(at uint64) []*record.Job {
		all, err := jobs.ReadyJobs(bn.m.View(bn.store()), []wire.JobKind{wire.JobKind_JOB_KIND_EMPTY_TRASH}, at, 10)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	empty := func() {
		for _, j := range ready(math.MaxUint64) {
			c.ok(c.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: uint64(j.Id)}}}).Response)
		}
		bn.settleJobs()
		bn.check()
	}
	now, err := kvtx.ClusterTime(bn.m.View(bn.store()))
	if err != nil {
		t.Fatal(err)
	}
	remove("one")
	c.ok(c.setTrash(top, 48*hourMillis)) // the policy at the first removal of the hour counts
	remove("two")
	if before, after := len(ready(now+25*hourMillis-1)), len(ready(now+25*hourMillis)); before != 0 || after != 1 {
		t.Errorf("%d jobs empty the trash before 25 hours have passed, %d then", before, after)
	}
	empty()
	if have := c.namesAt("/top/.trash"); len(have) > 0 {
		t.Errorf("the trash has %q", have)
	}
	remove("three")
	hour := c.hour("/top")
	c.ok(c.rename(&wire.Rename{Parent: c.walkTo("/top/.trash"), Name: hour[len("/top/.trash/"):], NewParent: top, NewName: "saved"}))
	empty()
	if !c.exists("/top/saved/three") {
		t.Error("what was moved out of the trash is gone")
	}
	remove("four")
	c.ok(c.removeTree(top, ".trash"))
	empty() // of what is gone
	c.ok(c.removeTree(c.root, "top"))
	bn.settleJobs()
	bn.check()
	if n, err := kvtx.ReadCounters(bn.m.View(bn.kv)); err != nil || n.Inodes != 1 {
		t.Errorf("%d inodes are left (%v)", n.Inodes, err)
	}
}
