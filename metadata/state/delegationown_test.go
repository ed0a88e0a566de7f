package state_test

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
)

// A change of a batch that is older than the last change of an inode lowers no time of it. A time of
// modification that a program has set in the future is replaced, as anywhere.
func TestABatchLowersNoTime(t *testing.T) {
	const hour = int64(3_600_000_000_000)
	b := newBench(t)
	b.wall = 100 * hour
	c, other := b.open(leased), b.open(leased)
	dir := c.mkdir(c.root, "d")
	for _, name := range []string{"removed", "renamed", "replaced"} {
		c.ok(c.link(c.mkfile(dir, name), c.root, name))
	}
	first := c.delegate(dir, 10).First
	b.tick(1000)
	files := map[string]uint64{}
	for _, name := range []string{"removed", "renamed", "replaced"} {
		files[name] = c.walkTo("/" + name)
		c.ok(other.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: files[name], Mode: 0o600, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE)}}}))
	}
	files["d"] = dir
	before := map[string]*wire.Attr{}
	for name, inode := range files {
		before[name] = c.attr(inode)
	}
	old := func(op *wire.BatchOp) *wire.BatchOp {
		op.At = b.wall - hour/2
		return op
	}
	holdKinds(t, "changes", c.batch(old(removing(dir, "removed", false)), old(renaming(dir, "renamed", dir, "replaced"))), "ok", "ok")
	for name, inode := range files {
		if a := c.attr(inode); a.Ctime < before[name].Ctime || a.Mtime < before[name].Mtime {
			t.Errorf("%s: times %d and %d, before %d and %d", name, a.Mtime, a.Ctime, before[name].Mtime, before[name].Ctime)
		}
	}
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: dir, Mtime: 200 * hour, Valid: uint32(wire.SetAttrField_SET_ATTR_MTIME)}}}))
	holdKinds(t, "a create", c.batch(old(makingFile(first, dir, "f"))), "ok")
	if a := c.attr(dir); a.Mtime != a.Ctime || a.Ctime < before["d"].Ctime {
		t.Errorf("times %d and %d, before %d", a.Mtime, a.Ctime, before["d"].Ctime)
	}
	b.check()
	b.replays()
}

// A delegation says the time of the service.
func TestADelegationSaysTheTime(t *testing.T) {
	b := newBench(t)
	c := b.open(leased)
	dir := c.mkdir(c.root, "d")
	was := c.attr(dir).Ctime
	b.tick(1000)
	for _, r := range []*wire.DelegateReply{c.delegate(dir, 0), c.delegate(0, 10)} {
		if r.Now <= was || r.Now > b.wall+1_000_000 {
			t.Errorf("the time is %d, the directory is from %d", r.Now, was)
		}
	}
}

// The move of a tree below a quota, or to where it would be deep, and a quota above it, meet the delegations in
// it of the same session too: what the session makes there next might be refused.
func TestAMoveMeetsItsOwnDelegations(t *testing.T) {
	b := newBench(t)
	c := b.open(leased)
	limited, free, deep := c.mkdir(c.root, "limited"), c.mkdir(c.root, "free"), c.chain(c.mkdir(c.root, "deep"), 300)
	b.ok(b.setQuota(limited, 0, 10))
	tree := c.mkdir(c.root, "tree")
	top := c.mkdir(tree, "top")
	moves := func(to uint64) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: c.root, Name: "tree", NewParent: to, NewName: "tree"}}}
	}
	for what, to := range map[string]uint64{"below a quota": limited, "deep": deep} {
		if r := c.delegate(top, 0); !r.Delegated {
			t.Fatal(r.Why)
		}
		if res := c.send(c.request(moves(to))); len(res.Met) != 1 || uint64(res.Met[0].Dir) != top || uint64(res.Met[0].Session) != c.id || c.attr(tree).Parent != c.root {
			t.Errorf("%s: %v", what, res)
		}
		c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndDelegation{EndDelegation: &wire.EndDelegation{Inodes: []uint64{top}}}}))
		c.ok(c.do(moves(to)))
		c.ok(c.renameAs(&wire.Rename{Parent: to, Name: "tree", NewParent: c.root, NewName: "tree"}))
	}
	c.delegate(top, 0)
	c.ok(c.do(moves(free)))
	if r := c.delegate(top, 0); !r.Delegated {
		t.Errorf("after a move to where nothing limits it: %s", r.Why)
	}
	b.check()
}
