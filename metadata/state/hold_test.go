package state_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// holdCase is a directory with a file and a subdirectory, the session with the exclusive lease on
// it, and another session.
type holdCase struct {
	*client
	other      *client
	dir, first uint64
}

func newHoldCase(t *testing.T) *holdCase {
	b := newCluster(t, 3)
	c := &holdCase{client: b.open(nil)}
	c.other = b.open(nil)
	c.dir = c.mkdir(c.root, "d")
	c.mkfile(c.dir, "old")
	c.mkdir(c.dir, "sub")
	c.mkfile(c.root, "f")
	c.first = c.ok(c.hold(c.dir, 4)).GetHold().GetFirst()
	return c
}

func (c *client) hold(dir uint64, numbers uint32) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Hold{Hold: &wire.Hold{Directory: dir, Numbers: numbers}}})
}

func (c *client) endHold(dir uint64) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndHold{EndHold: &wire.EndHold{Directory: dir}}})
}

func numbered(dir, inode uint64, name string) *wire.Create {
	return &wire.Create{Parent: dir, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true, Inode: inode}
}

// While a session has the exclusive lease, any other session's request on the directory or its
// entries is refused and changes nothing. It succeeds when proposed again after the lease ends.
// Requests that concern a file in it but not the file's name are not refused.
func TestHolds(t *testing.T) {
	type request = wire.MetaRequest
	for _, row := range []struct {
		what string
		do   func(c *holdCase) *request
		free bool // the lease does not concern it
		want string
	}{
		{"create", func(c *holdCase) *request { return createReq(c.dir, "x") }, false, "ok"},
		{"create of what is there", func(c *holdCase) *request { return createReq(c.dir, "old") }, false, "already exists"},
		{"mkdir", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: c.dir, Name: "x", Type: wire.FileType_FILE_TYPE_DIRECTORY}}}
		}, false, "ok"},
		{"remove", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.dir, Name: "old"}}}
		}, false, "ok"},
		{"remove of what is not there", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.dir, Name: "x"}}}
		}, false, "not found"},
		{"rename out of it", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: c.dir, Name: "old", NewParent: c.root, NewName: "x"}}}
		}, false, "ok"},
		{"rename into it", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: c.root, Name: "f", NewParent: c.dir, NewName: "x"}}}
		}, false, "ok"},
		{"rename of it", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: c.root, Name: "d", NewParent: c.root, NewName: "e"}}}
		}, false, "ok"},
		{"hard link into it", func(c *holdCase) *request {
			f := c.walk("f").GetWalk().GetAttr().GetInode()
			return &request{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: f, Parent: c.dir, Name: "x"}}}
		}, false, "ok"},
		{"removal of the tree", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: c.root, Name: "d"}}}
		}, false, "ok"},
		{"its mode", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: c.dir, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 0o700}}}
		}, false, "ok"},
		{"an entry of a directory in it", func(c *holdCase) *request {
			return createReq(c.walk("d/sub").GetWalk().GetAttr().GetInode(), "x")
		}, true, "ok"},
		{"the mode of a file in it", func(c *holdCase) *request {
			f := c.walk("d/old").GetWalk().GetAttr().GetInode()
			return &request{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: f, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: 0o600}}}
		}, true, "ok"},
		{"a file that it may have made", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: c.first + 1, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE)}}}
		}, false, "not found"},
		{"another hold", func(c *holdCase) *request {
			return &request{Op: &wire.MetaRequest_Hold{Hold: &wire.Hold{Directory: c.dir}}}
		}, true, "busy"},
	} {
		t.Run(row.what, func(t *testing.T) {
			c := newHoldCase(t)
			req := c.other.request(row.do(c))
			before := c.kv.Len()
			got := c.other.send(req)
			if met := got.Met.Directory != 0; met == row.free {
				t.Fatalf("it met the hold: %v; %s", met, kind(got.Response))
			}
			if !row.free {
				if c.kv.Len() != before || len(got.Touched) > 0 {
					t.Error("what was refused has changed something")
				}
				c.check()
				c.ok(c.endHold(c.dir))
				got = c.other.send(proto.Clone(req).(*request))
			}
			if kind(got.Response) != row.want || got.Met.Directory != 0 {
				t.Errorf("%s, want %s; held %v", kind(got.Response), row.want, got.Met)
			}
			if again := c.other.send(proto.Clone(req).(*request)); row.want == "ok" && !again.Repeated {
				t.Error("the answer was not kept")
			}
			c.check()
		})
	}
}

// A session can create a file once under each inode number that it received, empty or with its
// first content. Each step fails, and each step succeeds but its answer is lost.
func TestNumberedFaults(t *testing.T) {
	commit := func(c *holdCase, name string, n uint64) *wire.Commit {
		g := c.grant(c.dir, 1)
		return &wire.Commit{Inode: c.first + n, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3, Create: numbered(c.dir, c.first+n, name),
			Stripes: []*wire.Stripe{stripe(g, 9, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 9, g, 0)}}
	}
	clone := func(op *wire.Commit) *wire.Commit { return proto.Clone(op).(*wire.Commit) }
	for _, row := range []struct {
		what string
		do   func(c *holdCase) *wire.MetaResponse
		want string
	}{
		{"a create", func(c *holdCase) *wire.MetaResponse { return c.create(numbered(c.dir, c.first, "x")) }, "ok"},
		{"again, since its answer was lost", func(c *holdCase) *wire.MetaResponse {
			c.ok(c.create(numbered(c.dir, c.first, "x")))
			return c.create(numbered(c.dir, c.first, "x"))
		}, "ok"},
		{"again, after it was removed", func(c *holdCase) *wire.MetaResponse {
			c.ok(c.create(numbered(c.dir, c.first, "x")))
			c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.dir, Name: "x"}}}))
			return c.create(numbered(c.dir, c.first, "x"))
		}, "stale"},
		{"of a name that is taken", func(c *holdCase) *wire.MetaResponse { return c.create(numbered(c.dir, c.first, "old")) }, "already exists"},
		{"of a number past those given", func(c *holdCase) *wire.MetaResponse { return c.create(numbered(c.dir, c.first+4, "x")) }, "stale"},
		{"of another's number", func(c *holdCase) *wire.MetaResponse {
			return c.other.create(numbered(c.root, c.first, "x"))
		}, "stale"},
		{"of a number given back", func(c *holdCase) *wire.MetaResponse {
			c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Hold{Hold: &wire.Hold{Done: []uint64{c.first}}}}))
			return c.create(numbered(c.dir, c.first, "x"))
		}, "stale"},
		{"after the hold was lost", func(c *holdCase) *wire.MetaResponse {
			c.lapse()
			return c.create(numbered(c.dir, c.first, "x"))
		}, "ok"},
		{"after the hold was lost, and another made the name", func(c *holdCase) *wire.MetaResponse {
			c.lapse()
			c.other.mkfile(c.dir, "x")
			return c.create(numbered(c.dir, c.first, "x"))
		}, "already exists"},
		{"not exclusive", func(c *holdCase) *wire.MetaResponse {
			op := numbered(c.dir, c.first, "x")
			op.Exclusive = false
			return c.create(op)
		}, "invalid argument"},
		{"a commit", func(c *holdCase) *wire.MetaResponse { return c.commit(commit(c, "x", 0)) }, "ok"},
		{"a commit again, since its answer was lost", func(c *holdCase) *wire.MetaResponse {
			op := commit(c, "x", 0)
			c.ok(c.commit(clone(op)))
			return c.commit(clone(op))
		}, "ok"},
		{"a commit after the create came without it", func(c *holdCase) *wire.MetaResponse {
			c.ok(c.create(numbered(c.dir, c.first, "x")))
			return c.commit(commit(c, "x", 0))
		}, "ok"},
		{"a commit of a name that is taken", func(c *holdCase) *wire.MetaResponse { return c.commit(commit(c, "old", 1)) }, "already exists"},
		{"a commit whose stripe is of no grant", func(c *holdCase) *wire.MetaResponse {
			op := commit(c, "x", 0)
			op.Stripes[0].Id += 100
			op.Extents[0].Stripe += 100
			return c.commit(op)
		}, "stale"},
		{"a commit that makes another file", func(c *holdCase) *wire.MetaResponse {
			op := commit(c, "x", 0)
			op.Inode++
			return c.commit(op)
		}, "invalid argument"},
		{"a commit past the quota", func(c *holdCase) *wire.MetaResponse {
			c.ok(c.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: c.root, Bytes: 5}}}))
			return c.commit(commit(c, "x", 0))
		}, "quota exceeded"},
	} {
		t.Run(row.what, func(t *testing.T) {
			c := newHoldCase(t)
			if got := kind(row.do(c)); got != row.want {
				t.Errorf("%s, want %s", got, row.want)
			}
			if a := c.walk("d/x").GetWalk().GetAttr(); row.want == "ok" && a.GetInode() != c.first {
				t.Errorf("the file is %v, not %x", a, c.first)
			} else if row.want != "ok" && row.want != "already exists" && a != nil {
				t.Errorf("%s, and the file is there: %v", row.want, a)
			}
			c.check()
		})
	}
}

func (c *holdCase) lapse() {
	c.t.Helper()
	c.ok(c.apply(&statepb.Command{Op: &statepb.Command_LapseHold{LapseHold: &statepb.LapseHold{Directory: c.dir, Session: c.id}}}).Response)
}

// An exclusive lease ends with its session, with its directory, and when the leader revokes it from
// a session that stopped answering. A session's numbers and leases are bounded.
func TestHoldsEnd(t *testing.T) {
	c := newHoldCase(t)
	held := func(want string) {
		t.Helper()
		if got := kind(c.other.hold(c.dir, 0)); got != want {
			t.Errorf("another gets the hold: %s, want %s", got, want)
		}
		c.check()
	}
	held("busy")
	c.ok(c.hold(c.dir, 0))
	c.ok(c.other.endHold(c.dir)) // another session's: nothing happens
	held("busy")
	c.lapse()
	held("ok")
	c.lapse() // another session has it by now
	c.ok(c.other.endHold(c.dir))
	c.ok(c.hold(c.dir, 0))
	c.ok(c.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
	held("ok")
	if got := kind(c.other.create(numbered(c.dir, c.first+1, "x"))); got != "stale" {
		t.Errorf("a number of a session that ended: %s", got)
	}
	for _, name := range []string{"sub", "old"} {
		c.ok(c.other.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.dir, Name: name, Directory: name == "sub"}}}))
	}
	c.ok(c.other.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "d", Directory: true}}}))
	c.check()
	for i := range 16 {
		if got := kind(c.other.hold(0, 1)); got != "ok" {
			t.Fatalf("range %d: %s", i, got)
		}
	}
	if got := kind(c.other.hold(0, 1)); got != "too large" {
		t.Errorf("a seventeenth range: %s", got)
	}
	if got := kind(c.other.hold(0, 1025)); got != "invalid argument" {
		t.Errorf("1,025 numbers: %s", got)
	}
	for i := range 64 {
		c.ok(c.other.hold(c.other.mkdir(c.root, fmt.Sprint("dir", i)), 0))
	}
	if got := kind(c.other.hold(c.other.mkdir(c.root, "zz"), 0)); got != "too large" {
		t.Errorf("a 65th directory: %s", got)
	}
	c.check()
	if *rewriteLogs {
		c.writeLog("v1-holds")
	}
	c.ok(c.other.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
	c.check()
}

// The clone of a tree stops at a directory with an exclusive lease: the state may not know yet what
// the holder created there.
func TestACloneOfATreeWaitsForTheHolder(t *testing.T) {
	c := newHoldCase(t)
	c.ok(c.other.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: c.root, Name: "top", Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755}}}))
	top := c.walk("top").GetWalk().GetAttr().GetInode()
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: c.root, Name: "d", NewParent: top, NewName: "d"}}}))
	id := c.ok(c.other.cloneTree(top, c.root, "copy")).GetJobs().GetJobs()[0].Id
	piece := &statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: id, Limit: 1000}}}
	if got := c.apply(piece); got.Met.Directory != moraine.InodeID(c.dir) {
		t.Fatalf("it met the hold of %v: %s", got.Met, kind(got.Response))
	}
	c.ok(c.create(numbered(c.dir, c.first, "x")))
	c.ok(c.endHold(c.dir))
	if got := c.apply(piece); got.Met.Directory != 0 {
		t.Fatalf("it met the hold of %v", got.Met)
	}
	if !c.exists("/copy/d/x") {
		t.Error("the clone lacks a file that was made before it")
	}
	c.check()
}

// One command ends a bounded number of sessions, whatever leases they have.
func TestSessionsWithManyHoldsEnd(t *testing.T) {
	b := newCluster(t, 1)
	all := &statepb.ExpireSessions{}
	for i := range session.MaxExpireHolding {
		c := b.open(nil)
		all.Sessions = append(all.Sessions, c.id)
		for n := range 64 {
			c.ok(c.hold(c.mkdir(c.root, fmt.Sprint(i, "-", n)), 0))
		}
		for range 16 {
			c.ok(c.hold(0, 1))
		}
	}
	res := b.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: all}})
	b.ok(res.Response)
	if len(res.Events.SessionsEnded) != len(all.Sessions) {
		t.Errorf("%d of %d sessions ended", len(res.Events.SessionsEnded), len(all.Sessions))
	}
	b.check()
}

// A session confined to a directory does not learn which directories outside it have exclusive
// leases, or whose.
func TestAHoldOutsideTheScopeIsNotSeen(t *testing.T) {
	b := newBench(t)
	owner := b.open(nil)
	team, other := owner.mkdir(owner.root, "team"), owner.mkdir(owner.root, "other")
	hold := func(c *client, dir uint64) *wire.MetaResponse {
		return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Hold{Hold: &wire.Hold{Directory: dir}}})
	}
	b.ok(hold(owner, other))
	b.ok(hold(owner, team))
	in := b.open(func(op *wire.OpenSession) { op.Scope = "/team" })
	if k := kind(hold(in, team)); k != "busy" {
		t.Errorf("a directory in the scope: %s", k)
	}
	missing := hold(in, 1<<39).GetError()
	if e := hold(in, other).GetError(); e.GetKind() != missing.GetKind() || e.GetText() != missing.GetText() {
		t.Errorf("a directory outside the scope: %v; one that there is not: %v", e, missing)
	}
}

// A session also does not learn which stripe numbers others may write.
func TestEndingAnothersGrantTellsNothing(t *testing.T) {
	b := newCluster(t, 3)
	owner := b.open(nil)
	first := owner.grant(owner.root, 4)
	other := b.open(nil)
	end := func(c *client, first uint64) *wire.MetaResponse {
		return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}})
	}
	b.ok(end(other, first+100))
	b.ok(end(other, first))
	f := owner.mkfile(owner.root, "f")
	b.ok(owner.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND,
		Stripes: []*wire.Stripe{stripe(first, 100, 1, 2)}, Extents: []*wire.Extent{extent(0, 100, first, 0)}}))
}
