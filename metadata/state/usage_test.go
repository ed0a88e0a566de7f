package state_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// usage returns bytes and inodes below a directory.
func (c *client) usage(dir uint64) [2]uint64 {
	c.t.Helper()
	u := c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: dir}}})).GetUsage().GetUsage()
	return [2]uint64{u.GetBytes(), u.GetInodes()}
}

func (c *client) wantUsage(what string, dir, bytes, inodes uint64) {
	c.t.Helper()
	if have := c.usage(dir); have != [2]uint64{bytes, inodes} {
		c.t.Errorf("%s: %d bytes and %d inodes, want %d and %d", what, have[0], have[1], bytes, inodes)
	}
}

func (c *client) resize(inode, size uint64) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: inode, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: size}}})
}

func (c *client) rename(op *wire.Rename) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: op}})
}

func (c *client) remove(op *wire.Remove) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: op}})
}

func (c *client) removeTree(parent uint64, name string) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: parent, Name: name}}})
}

func (c *client) file(dir uint64, name string, size uint64) uint64 {
	c.t.Helper()
	f := c.mkfile(dir, name)
	c.ok(c.resize(f, size))
	return f
}

// runLeaderJob runs one piece of the first job of a kind; false if there is none.
func (b *bench) runLeaderJob(kind wire.JobKind, limit uint32) bool {
	b.t.Helper()
	jobs, err := jobs.PendingJobs(b.m.View(b.store()), []wire.JobKind{kind}, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(jobs) == 0 {
		return false
	}
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: jobs[0].Id, Limit: limit}}}).Response)
	return true
}

func (b *bench) setQuota(dir, bytes, inodes uint64) *wire.MetaResponse {
	b.t.Helper()
	return b.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: dir, Bytes: bytes, Inodes: inodes}}})
}

func (b *bench) recount() *wire.Job {
	b.t.Helper()
	return b.ok(b.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_Recount{Recount: &wire.Recount{}}})).GetJobs().GetJobs()[0]
}

func TestUsageFollowsTheTree(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	a, z := c.mkdir(c.root, "a"), c.mkdir(c.root, "z")
	b := c.mkdir(a, "b")
	f := c.file(b, "f", 1000)
	c.file(a, "g", 50)
	c.wantUsage("the root", c.root, 1050, 5)
	c.wantUsage("a", a, 1050, 3)
	c.wantUsage("b", b, 1000, 1)
	c.wantUsage("z", z, 0, 0)
	c.wantUsage("a file's directory", f, 1000, 1)

	c.ok(c.rename(&wire.Rename{Parent: a, Name: "b", NewParent: z, NewName: "b2"}))
	c.wantUsage("a without b", a, 50, 1)
	c.wantUsage("z with b", z, 1000, 2)
	c.wantUsage("the root after a move below it", c.root, 1050, 5)

	// Two directories exchange places, one below the other's parent.
	d := c.mkdir(a, "d")
	c.file(d, "h", 7)
	c.ok(c.rename(&wire.Rename{Parent: a, Name: "d", NewParent: z, NewName: "b2", Exchange: true}))
	c.wantUsage("a after the exchange", a, 1050, 3)
	c.wantUsage("z after the exchange", z, 7, 2)

	// A file with two names counts once, at its newest name, and stays counted while a name is
	// left.
	c.ok(c.link(f, z, "f2"))
	c.wantUsage("b, whose file has another name", b, 0, 0)
	c.wantUsage("z with the second name", z, 1007, 3)
	c.ok(c.remove(&wire.Remove{Parent: z, Name: "f2"}))
	c.wantUsage("b with its file again", b, 1000, 1)
	c.wantUsage("z without", z, 7, 2)

	// A file without a name counts nowhere.
	c.ok(c.remove(&wire.Remove{Parent: b, Name: "f", Keep: true}))
	c.ok(c.resize(f, 5000))
	c.wantUsage("the root without an open file", c.root, 57, 6)
	c.ok(c.link(f, b, "f"))
	c.wantUsage("the root with it", c.root, 5057, 7)

	// A removed tree stops counting at once, before the job removes it.
	c.ok(c.removeTree(c.root, "a"))
	c.wantUsage("the root without a", c.root, 7, 3)
	bn.check()
	for bn.runLeaderJob(wire.JobKind_JOB_KIND_REMOVE_TREE, 3) {
		bn.check()
	}
	c.wantUsage("the root after the job", c.root, 7, 3)
}

// A file with two names loses the one in a removed tree.
func TestUsageOfLinksInRemovedTrees(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	a, z := c.mkdir(c.root, "a"), c.mkdir(c.root, "z")
	f := c.file(z, "f", 100)
	c.ok(c.link(f, a, "f"))
	c.wantUsage("a", a, 100, 1)
	c.ok(c.removeTree(c.root, "a"))
	c.wantUsage("the root while the tree is taken away", c.root, 0, 1)
	for bn.runLeaderJob(wire.JobKind_JOB_KIND_REMOVE_TREE, 1) {
		bn.check()
	}
	c.wantUsage("z", z, 100, 1)
	c.wantUsage("the root", c.root, 100, 2)
}

func TestQuota(t *testing.T) {
	bn := newCluster(t, 1)
	c := bn.open(nil)
	team := c.mkdir(c.root, "team")
	sub := c.mkdir(team, "sub")
	over := func(what string, resp *wire.MetaResponse) {
		t.Helper()
		if kind(resp) != "quota exceeded" {
			t.Errorf("%s: %s", what, kind(resp))
		}
	}
	f := c.file(sub, "f", 600)
	out := c.file(c.root, "out", 500)
	bn.ok(bn.setQuota(team, 1000, 4))

	// Bytes: exactly the quota succeeds, one more fails, whatever request adds it.
	c.ok(c.resize(f, 1000))
	resp := c.resize(f, 1001)
	over("a byte more", resp)
	for _, part := range []string{"/team", "1001", "1000", "bytes"} {
		if e := resp.GetError(); !strings.Contains(e.GetText(), part) {
			t.Errorf("the error says %q of %q, and nothing of %s", e.GetText(), e.GetRef(), part)
		}
	}
	over("a rename into it", c.rename(&wire.Rename{Parent: c.root, Name: "out", NewParent: sub, NewName: "out"}))
	over("a second name in it", c.link(out, sub, "out"))
	g := c.mkfile(sub, "g")
	over("a clone in it", c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Ranges: []*wire.CloneRange{{Inode: out}}}))
	first := c.grant(f, 4)
	one := func(inode, at uint64, mode wire.CommitMode, n uint64) *wire.MetaResponse {
		return c.commit(&wire.Commit{Inode: inode, Mode: mode, Level: 3, Stripes: []*wire.Stripe{stripe(first+n, 100, 1)}, Extents: []*wire.Extent{extent(at, 100, first+n, 0)}})
	}
	over("an append", one(f, 0, wire.CommitMode_COMMIT_MODE_APPEND, 0))
	c.ok(one(f, 900, wire.CommitMode_COMMIT_MODE_OVERLAY, 0)) // in place, at a full quota
	over("an overwrite past the end", one(f, 950, wire.CommitMode_COMMIT_MODE_OVERLAY, 1))

	// Inodes: sub, f and g are three.
	c.mkfile(team, "h")
	over("a file too many", c.create(&wire.Create{Parent: sub, Name: "i", Type: wire.FileType_FILE_TYPE_REGULAR}))
	over("a directory too many", c.create(&wire.Create{Parent: sub, Name: "i", Type: wire.FileType_FILE_TYPE_DIRECTORY}))
	c.ok(c.rename(&wire.Rename{Parent: team, Name: "h", NewParent: sub, NewName: "g"})) // it replaces one

	// Requests that free space always succeed, and there is room again.
	c.ok(c.remove(&wire.Remove{Parent: sub, Name: "g"}))
	c.mkfile(sub, "i")
	c.ok(c.resize(f, 400))
	c.ok(c.rename(&wire.Rename{Parent: c.root, Name: "out", NewParent: team, NewName: "out"}))
	c.wantUsage("team", team, 900, 4)

	// A quota below the present usage forbids growth and allows shrinking and other changes.
	bn.ok(bn.setQuota(team, 100, 0))
	over("growth past the new quota", c.resize(f, 401))
	c.ok(c.resize(f, 399))
	c.mkfile(sub, "j") // inodes are not bounded any more
	c.ok(c.rename(&wire.Rename{Parent: sub, Name: "f", NewParent: team, NewName: "f"}))
	c.ok(c.removeTree(team, "sub"))
	bn.check()

	// The nearest quota and those above it all apply.
	bn.ok(bn.setQuota(team, 0, 0))
	in := c.mkdir(team, "in")
	bn.ok(bn.setQuota(in, 10_000, 0))
	bn.ok(bn.setQuota(c.root, 1000, 0))
	over("growth past the quota above", c.file2(in, "k", 200))
	r := c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: in}}})).GetUsage()
	if !r.GetLimited() || r.GetRoomBytes() != 101 || r.GetQuota().GetInode() != in {
		t.Errorf("room below in: %v", r)
	}
	quotas := c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListQuotas{ListQuotas: &wire.ListQuotas{}}})).GetQuotas().GetQuotas()
	if len(quotas) != 2 || quotas[0].Path != "/" || quotas[1].Path != "/team/in" || quotas[0].QuotaBytes != 1000 || quotas[0].Bytes != 899 {
		t.Errorf("quotas: %v", quotas)
	}
	c.ok(c.remove(&wire.Remove{Parent: in, Name: "k"}))
	c.ok(c.remove(&wire.Remove{Parent: team, Name: "in", Directory: true})) // with its quota
	bn.check()
	if *rewriteLogs {
		bn.writeLog("v1-quotas")
	}
}

// A session confined to a directory reads directory names in quota errors as it writes them, and
// none above its scope.
func TestQuotaErrorKeepsToTheScope(t *testing.T) {
	bn := newCluster(t, 1)
	c := bn.open(nil)
	team := c.mkdir(c.root, "team")
	sub := c.mkdir(team, "sub")
	bn.ok(bn.setQuota(sub, 0, 2))
	in := bn.open(func(op *wire.OpenSession) { op.Scope = "/team" })
	below := bn.open(func(op *wire.OpenSession) { op.Scope = "/team/sub" })
	says := func(c *client, where string) {
		t.Helper()
		resp := c.create(&wire.Create{Parent: sub, Name: "i", Type: wire.FileType_FILE_TYPE_REGULAR})
		if e := resp.GetError(); kind(resp) != "quota exceeded" || !strings.Contains(e.GetText(), "inodes are below "+where+";") ||
			where[0] == '/' && e.GetRef() != where || where[0] != '/' && e.GetRef() != "" {
			t.Errorf("not below %s: %v", where, resp)
		}
	}
	c.mkfile(sub, "f")
	c.mkfile(sub, "g")
	says(c, "/team/sub")
	says(in, "/sub")
	says(below, "/")
	bn.ok(bn.setQuota(sub, 0, 0))
	bn.ok(bn.setQuota(team, 0, 3))
	says(in, "/")
	says(below, "a directory above the session's")
}

// file2 is file for cases where the size may be refused.
func (c *client) file2(dir uint64, name string, size uint64) *wire.MetaResponse {
	return c.resize(c.mkfile(dir, name), size)
}

// When a file loses the name by which one tree counts it, it may be counted in another tree
// although that one's quota is full.
func TestRemovalMayBringAFileToAFullQuota(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	full, other := c.mkdir(c.root, "full"), c.mkdir(c.root, "other")
	f := c.file(full, "f", 100)
	c.ok(c.link(f, other, "f"))
	bn.ok(bn.setQuota(full, 10, 0))
	c.file(c.root, "g", 1)
	c.ok(c.rename(&wire.Rename{Parent: c.root, Name: "g", NewParent: other, NewName: "f"}))
	c.wantUsage("full", full, 100, 1)
	c.wantUsage("other", other, 1, 1)
	bn.check()
}

// A recount finds, reports and corrects a wrong count.
func TestRecountPutsRight(t *testing.T) {
	bn := newBench(t)
	c := bn.open(nil)
	a := c.mkdir(c.root, "a")
	for n := range 20 {
		c.file(c.mkdir(a, string(rune('a'+n))), "f", 10)
	}
	if j := bn.recount(); j.Id != bn.recount().Id {
		t.Error("a second recount began beside the first")
	}
	for bn.runLeaderJob(wire.JobKind_JOB_KIND_RECOUNT, 9) {
		bn.check()
	}
	key := binary.BigEndian.AppendUint64([]byte{0, 0, 0x60, 2}, a)
	if err := bn.kv.Set(key, []byte{1, 2, 2}); err != nil { // one byte, one inode
		t.Fatal(err)
	}
	c.wantUsage("a, damaged", a, 1, 1)
	id := bn.recount().Id
	for bn.runLeaderJob(wire.JobKind_JOB_KIND_RECOUNT, 9) {
		c.ok(c.resize(c.walkTo("/a/c/f"), 11))
	}
	c.wantUsage("a, recounted", a, 201, 40)
	jobs := c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: id, Ended: true}}})).GetJobs().GetJobs()
	if len(jobs) != 1 || jobs[0].State != wire.JobState_JOB_STATE_DONE || !strings.Contains(jobs[0].Error, "1 directories were wrong") {
		t.Errorf("the job says %v", jobs)
	}
}

func (c *client) walkTo(path string) uint64 {
	c.t.Helper()
	return c.ok(c.walk(path)).GetWalk().GetAttr().GetInode()
}

// The cost of a command grows with the depth of its target, so the depth is bounded. Deeper trees
// may be removed.
func TestDepthIsBounded(t *testing.T) {
	b := newBench(t)
	c := b.open(nil)
	at, depth := c.root, 0
	for ; depth < 600; depth++ {
		r := c.create(&wire.Create{Parent: at, Name: "d", Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755})
		if r.GetError() != nil {
			if k := kind(r); k != "too large" {
				t.Fatalf("%d directories deep: %s", depth, k)
			}
			break
		}
		at = r.GetEntry().GetAttr().GetInode()
	}
	if depth != 513 { // with 512 between the last one and the root
		t.Errorf("directories can be made %d deep", depth)
	}
	b.check()
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: c.root, Name: "d"}}}))
	b.check()
}

// A confined session pages through the quotas below its directory, and sees neither the numbers nor
// the count of quotas outside.
func TestQuotasOutsideTheScopeLeaveNoTrace(t *testing.T) {
	bn := newCluster(t, 1)
	c := bn.open(nil)
	team, other := c.mkdir(c.root, "team"), c.mkdir(c.root, "other")
	var want []uint64
	for n := range 4 {
		name := string(rune('a' + n))
		for _, dir := range []uint64{team, other} {
			d := c.mkdir(dir, name)
			bn.ok(bn.setQuota(d, 1000, 0))
			if dir == team {
				want = append(want, d)
			}
		}
	}
	in := bn.open(func(op *wire.OpenSession) { op.Scope = "/team" })
	list := func(after uint64, limit uint32) *wire.QuotasReply {
		return in.ok(in.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListQuotas{ListQuotas: &wire.ListQuotas{After: after, Limit: limit}}})).GetQuotas()
	}
	after := uint64(0)
	for n, d := range want {
		r := list(after, 1)
		if len(r.Quotas) != 1 || r.Quotas[0].Inode != d || r.Quotas[0].Path != "/"+string(rune('a'+n)) || r.Last != d || r.More != (n < len(want)-1) {
			t.Errorf("after %x: %v", after, r)
		}
		after = r.Last
	}
	if r := list(after, 1); len(r.Quotas) != 0 || r.Last != 0 || r.More {
		t.Errorf("after the last: %v", r)
	}
	if r := list(0, 100); len(r.Quotas) != len(want) || r.More || r.Last != want[len(want)-1] {
		t.Errorf("all: %v", r)
	}
}
