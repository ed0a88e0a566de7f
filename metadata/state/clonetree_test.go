package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func (c *client) cloneTree(dir, parent uint64, name string) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: dir, Parent: parent, Name: name}}})
}

// fill writes the bytes of count extent tables into a file.
func (c *client) fill(f uint64, tables int) {
	c.t.Helper()
	for range tables {
		g := c.grant(f, 1)
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{stripe(g, 512, 1)}}
		for n := range uint64(256) {
			op.Extents = append(op.Extents, extent(2*n, 1, g, 2*n))
		}
		c.ok(c.commit(op))
	}
}

// sourceTree makes a tree with a file of many tables, small files, links, empty directories and
// attributes.
func (c *client) sourceTree() uint64 {
	c.t.Helper()
	src := c.mkdir(c.root, "src")
	c.fill(c.mkfile(src, "large"), 9)
	sub := c.mkdir(src, "sub")
	for n := range 5 {
		c.fill(c.mkfile(sub, fmt.Sprint("f", n)), 1)
	}
	c.mkdir(c.mkdir(sub, "empty"), "below")
	c.ok(c.create(&wire.Create{Parent: sub, Name: "link", Type: wire.FileType_FILE_TYPE_SYMLINK, Target: "../large"}))
	c.ok(c.link(c.walkTo("/src/large"), sub, "second name"))
	c.ok(c.setXattr(&wire.SetXattr{Inode: c.walkTo("/src/large"), Name: "user.a", Value: []byte("x")}))
	return src
}

// same compares everything below two directories.
func (c *client) same(a, b string) {
	c.t.Helper()
	list := func(dir string) []*wire.DirEntry {
		return c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: c.walkTo(dir)}}})).GetReadDir().GetEntries()
	}
	have, want := list(b), list(a)
	if len(have) != len(want) {
		c.t.Fatalf("%s has %d entries, %s %d", b, len(have), a, len(want))
	}
	for n, e := range want {
		h := have[n]
		if h.Name != e.Name || h.Attr.Type != e.Attr.Type || h.Attr.Size != e.Attr.Size || h.Attr.Target != e.Attr.Target ||
			h.Attr.Mode != e.Attr.Mode || h.Attr.Mtime != e.Attr.Mtime || h.Attr.Stored != e.Attr.Stored || h.Attr.Inode == e.Attr.Inode {
			c.t.Errorf("%s/%s is %v, its clone %v", a, e.Name, e.Attr, h.Attr)
		}
		if e.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY {
			c.same(a+"/"+e.Name, b+"/"+e.Name)
			continue
		}
		if e.Attr.Type != wire.FileType_FILE_TYPE_REGULAR {
			continue
		}
		x, y := c.ok(c.extents(e.Attr.Inode, 0, 0)).GetExtents().GetExtents(), c.ok(c.extents(h.Attr.Inode, 0, 0)).GetExtents().GetExtents()
		if fmt.Sprint(x) != fmt.Sprint(y) {
			c.t.Errorf("%s/%s has other extents than its clone", a, e.Name)
		}
		if names := c.ok(c.xattr(h.Attr.Inode, "")).GetXattr().GetNames(); fmt.Sprint(names) != fmt.Sprint(c.ok(c.xattr(e.Attr.Inode, "")).GetXattr().GetNames()) {
			c.t.Errorf("%s/%s has other attributes than its clone: %q", a, e.Name, names)
		}
	}
}

func (c *client) exists(path string) bool {
	c.t.Helper()
	return c.walk(path).GetWalk().GetFound()
}

// ended returns how a job ended.
func (c *client) ended(id uint64) *wire.Job {
	c.t.Helper()
	return c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: id, Ended: true}}})).GetJobs().GetJobs()[0]
}

// The clone of a tree is built in pieces of any size, becomes visible only when it is whole, and
// shares every byte.
func TestCloneTree(t *testing.T) {
	for _, limit := range []uint32{1, 3, 10, 1000} {
		t.Run(fmt.Sprint("pieces of ", limit), func(t *testing.T) {
			bn := newCluster(t, 1)
			c := bn.open(nil)
			src := c.sourceTree()
			before := c.usage(c.root)
			job := c.ok(c.cloneTree(src, c.root, "dst")).GetJobs().GetJobs()[0]
			for c.ended(job.Id).State == wire.JobState_JOB_STATE_PENDING {
				if c.exists("/dst") || c.usage(c.root) != before {
					t.Fatal("the clone is seen before it is whole")
				}
				wrote := bn.kv.Sets + bn.kv.Deletes
				bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, limit)
				if wrote = bn.kv.Sets + bn.kv.Deletes - wrote; wrote > int(limit)+60 {
					t.Errorf("a piece of %d wrote %d keys", limit, wrote)
				}
				bn.check()
			}
			if j := c.ended(job.Id); j.State != wire.JobState_JOB_STATE_DONE {
				t.Fatalf("the job ended %s: %s", j.State, j.Error)
			}
			c.same("/src", "/dst")
			large := c.attr(c.walkTo("/src/large")).Size // its second name is a separate file in the clone
			if u, of := c.usage(c.walkTo("/dst")), c.usage(src); u != [2]uint64{of[0] + large, of[1] + 1} {
				t.Errorf("the clone has %v, the source %v", u, of)
			}
			// Apart from bytes they share nothing.
			c.ok(c.resize(c.walkTo("/dst/large"), 5))
			c.ok(c.removeTree(c.root, "src"))
			bn.settleJobs()
			if a := c.attr(c.walkTo("/dst/sub/f1")); a.Stored == 0 {
				t.Error("the clone lost its bytes with the source")
			}
			c.ok(c.removeTree(c.root, "dst"))
			bn.settleJobs()
			bn.check()
			if n, err := kvtx.ReadCounters(bn.m.View(bn.kv)); err != nil || n.Stripes != 0 || n.Inodes != 1 {
				t.Errorf("%d stripes and %d inodes are left (%v)", n.Stripes, n.Inodes, err)
			}
			if *rewriteLogs && limit == 3 {
				bn.writeLog("v1-clone-tree")
			}
		})
	}
}

// settleJobs runs the jobs that removals leave to the leader.
func (b *bench) settleJobs() {
	b.t.Helper()
	for b.runLeaderJob(wire.JobKind_JOB_KIND_REMOVE_TREE, 1000) || b.runLeaderJob(wire.JobKind_JOB_KIND_DROP_TABLES, 1000) {
	}
}

// Whatever happens to the clone of a tree after any of its pieces, either the clone is whole, or
// its parts are removed and the job says why.
func TestCloneTreeFaults(t *testing.T) {
	faults := []struct {
		name string
		do   func(c *client, job uint64)
		want wire.JobState
	}{
		{"canceled", func(c *client, job uint64) {
			c.ok(c.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: job}}}))
		}, wire.JobState_JOB_STATE_CANCELED},
		{"the name is taken", func(c *client, _ uint64) { c.mkdir(c.root, "dst") }, wire.JobState_JOB_STATE_FAILED},
		{"the quota is full", func(c *client, _ uint64) {
			c.ok(c.setQuota(c.root, 0, c.usage(c.root)[1]))
		}, wire.JobState_JOB_STATE_FAILED},
		{"the session ends", func(c *client, _ uint64) {
			c.ok(c.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
			*c = *c.bench.open(nil)
		}, wire.JobState_JOB_STATE_DONE},
		{"a file changes", func(c *client, _ uint64) { c.ok(c.resize(c.walkTo("/src/large"), 3000)) }, wire.JobState_JOB_STATE_DONE},
		{"a file goes", func(c *client, _ uint64) {
			c.ok(c.remove(&wire.Remove{Parent: c.walkTo("/src"), Name: "large"}))
			c.ok(c.remove(&wire.Remove{Parent: c.walkTo("/src/sub"), Name: "second name"}))
		}, wire.JobState_JOB_STATE_DONE},
		{"a directory goes", func(c *client, _ uint64) { c.ok(c.removeTree(c.walkTo("/src"), "sub")); c.settleJobs() }, wire.JobState_JOB_STATE_DONE},
		{"the last piece comes twice", func(*client, uint64) {}, wire.JobState_JOB_STATE_DONE},
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
				src := c.sourceTree()
				job := c.ok(c.cloneTree(src, c.root, "dst")).GetJobs().GetJobs()[0].Id
				for n := 0; n < after; n++ {
					bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 14)
				}
				if c.ended(job).State != wire.JobState_JOB_STATE_PENDING {
					if after < 5 {
						t.Fatalf("the clone took %d pieces: too few for this test", after)
					}
					return
				}
				f.do(c, job)
				bn.check()
				for bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 14) {
				}
				bn.check()
				bn.ok(bn.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: job, Limit: 14}}}).Response)
				j := c.ended(job)
				if j.State != f.want || (j.Error == "") != (f.want == wire.JobState_JOB_STATE_DONE) {
					t.Fatalf("after %d pieces: the job ended %s: %q", after, j.State, j.Error)
				}
				if f.name == "the quota is full" && !strings.Contains(j.Error, "the quota is") {
					t.Fatalf("after %d pieces: %q does not tell of the quota", after, j.Error)
				}
				bn.settleJobs()
				if f.want == wire.JobState_JOB_STATE_DONE {
					c.wholeFiles(c.walkTo("/dst"))
					c.ok(c.removeTree(c.root, "dst"))
				} else if c.exists("/dst/sub") {
					t.Fatalf("after %d pieces: the clone is there", after)
				} else if c.exists("/dst") {
					c.ok(c.removeTree(c.root, "dst"))
				}
				c.ok(c.removeTree(c.root, "src"))
				bn.settleJobs()
				bn.check()
				if n, err := kvtx.ReadCounters(bn.m.View(bn.kv)); err != nil || n.Stripes != 0 || n.Inodes != 1 {
					t.Fatalf("after %d pieces: %d stripes and %d inodes are left (%v)", after, n.Stripes, n.Inodes, err)
				}
			}
		})
	}
}

// wholeFiles checks that every file below a directory is one of the sizes that
// its source had.
func (c *client) wholeFiles(dir uint64) {
	c.t.Helper()
	for _, e := range c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: dir}}})).GetReadDir().GetEntries() {
		switch {
		case e.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY:
			c.wholeFiles(e.Attr.Inode)
		case e.Attr.Type == wire.FileType_FILE_TYPE_REGULAR && e.Attr.Size != 511 && e.Attr.Size != 3000 && e.Attr.Size != 9*512-9:
			c.t.Errorf("%s has %d bytes", e.Name, e.Attr.Size)
		}
	}
}

// A job of a session confined to a directory ignores a file that is moved out of the directory
// before its turn, as if the file were removed.
func TestJobsStayInTheirScope(t *testing.T) {
	bn := newCluster(t, 1)
	c := bn.open(nil)
	team, other := c.mkdir(c.root, "team"), c.mkdir(c.root, "other")
	src := c.mkdir(team, "src")
	sub := c.mkdir(src, "sub")
	in := bn.open(func(op *wire.OpenSession) { op.Scope = "/team" })
	finish := func() {
		for bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 10) {
		}
		bn.settleJobs()
	}
	clone := func(name string, meanwhile func()) *wire.Job {
		job := in.ok(in.cloneTree(src, team, name)).GetJobs().GetJobs()[0]
		bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 1)
		meanwhile()
		finish()
		return c.ended(job.Id)
	}
	move := func(parent uint64, name string, to uint64) {
		c.ok(c.renameAs(&wire.Rename{Parent: parent, Name: name, NewParent: to, NewName: name}))
	}
	j := clone("one", func() {
		move(src, "sub", other)
		c.mkfile(sub, "sekrit")
	})
	if j.State != wire.JobState_JOB_STATE_DONE || c.exists("/team/one/sub/sekrit") {
		t.Errorf("a directory that was moved out: %v, its new file is cloned: %v", j, c.exists("/team/one/sub/sekrit"))
	}
	move(other, "sub", src)
	j = clone("two", func() { move(team, "src", other) })
	if j.State != wire.JobState_JOB_STATE_FAILED || c.exists("/team/two") {
		t.Errorf("the source was moved out: %v", j)
	}
	move(other, "src", team)
	to := c.mkdir(team, "to")
	job := in.ok(in.cloneTree(src, to, "three")).GetJobs().GetJobs()[0]
	move(team, "to", other)
	finish()
	if j := c.ended(job.Id); j.State != wire.JobState_JOB_STATE_FAILED || c.exists("/other/to/three") {
		t.Errorf("the directory that it was for was moved out: %v", j)
	}
	bn.check()
}
