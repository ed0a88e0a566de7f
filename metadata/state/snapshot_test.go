package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// snapshot makes dir/.snapshots/name by pieces of limit records, and returns its directory.
func (c *client) snapshot(dir uint64, path, name string, limit uint32) uint64 {
	c.t.Helper()
	all := path + "/.snapshots"
	if !c.exists(all) {
		c.mkdir(dir, ".snapshots")
	}
	job := c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{
		Inode: dir, Parent: c.walkTo(all), Name: name, Snapshot: true}}})).GetJobs().GetJobs()[0]
	for c.ended(job.Id).State == wire.JobState_JOB_STATE_PENDING {
		c.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, limit)
		c.check()
	}
	if j := c.ended(job.Id); j.State != wire.JobState_JOB_STATE_DONE {
		c.t.Fatalf("the job ended %s: %s", j.State, j.Error)
	}
	return c.walkTo(all + "/" + name)
}

// changes are the requests that would change something in a snapshot of sourceTree.
func (c *client) changes(snap uint64, path string) map[string]func() *wire.MetaResponse {
	large, sub, link := c.walkTo(path+"/large"), c.walkTo(path+"/sub"), c.inodeAt(c.walkTo(path+"/sub"), "link")
	own := c.mkfile(c.root, "own")
	return map[string]func() *wire.MetaResponse{
		"create": func() *wire.MetaResponse {
			return c.create(&wire.Create{Parent: snap, Name: "new", Type: wire.FileType_FILE_TYPE_REGULAR})
		},
		"create below": func() *wire.MetaResponse {
			return c.create(&wire.Create{Parent: sub, Name: "new", Type: wire.FileType_FILE_TYPE_DIRECTORY})
		},
		"remove":        func() *wire.MetaResponse { return c.remove(&wire.Remove{Parent: snap, Name: "large"}) },
		"remove a link": func() *wire.MetaResponse { return c.remove(&wire.Remove{Parent: sub, Name: "link"}) },
		"remove a directory": func() *wire.MetaResponse {
			return c.remove(&wire.Remove{Parent: c.walkTo(path + "/sub/empty"), Name: "below", Directory: true})
		},
		"remove a tree": func() *wire.MetaResponse { return c.removeTree(snap, "sub") },
		"rename": func() *wire.MetaResponse {
			return c.rename(&wire.Rename{Parent: snap, Name: "large", NewParent: snap, NewName: "x"})
		},
		"rename out": func() *wire.MetaResponse {
			return c.rename(&wire.Rename{Parent: snap, Name: "large", NewParent: c.root, NewName: "x"})
		},
		"rename a directory": func() *wire.MetaResponse {
			return c.rename(&wire.Rename{Parent: snap, Name: "sub", NewParent: c.root, NewName: "x"})
		},
		"rename in": func() *wire.MetaResponse {
			return c.rename(&wire.Rename{Parent: c.root, Name: "own", NewParent: sub, NewName: "own"})
		},
		"rename over": func() *wire.MetaResponse {
			return c.rename(&wire.Rename{Parent: c.root, Name: "own", NewParent: snap, NewName: "large"})
		},
		"link in":  func() *wire.MetaResponse { return c.link(own, sub, "own") },
		"link out": func() *wire.MetaResponse { return c.link(large, c.root, "x") },
		"truncate": func() *wire.MetaResponse { return c.resize(large, 1) },
		"write": func() *wire.MetaResponse {
			g := c.grant(own, 1)
			return c.commit(&wire.Commit{Inode: large, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY,
				Stripes: []*wire.Stripe{stripe(g, 512, 1)}, Extents: []*wire.Extent{extent(0, 512, g, 0)}})
		},
		"attribute": func() *wire.MetaResponse {
			return c.setXattr(&wire.SetXattr{Inode: large, Name: "user.a", Value: []byte("y")})
		},
		"attribute of a snapshot": func() *wire.MetaResponse {
			return c.setXattr(&wire.SetXattr{Inode: snap, Name: "user.a", Value: []byte("y")})
		},
		"mode of a link":      func() *wire.MetaResponse { return c.chmod(link, 0o600) },
		"mode":                func() *wire.MetaResponse { return c.chmod(large, 0o600) },
		"mode of a directory": func() *wire.MetaResponse { return c.chmod(sub, 0o700) },
		"rename the snapshot": func() *wire.MetaResponse {
			return c.rename(&wire.Rename{Parent: c.attr(snap).Parent, Name: "s1", NewParent: c.root, NewName: "x"})
		},
		"remove the snapshot's directory": func() *wire.MetaResponse {
			return c.remove(&wire.Remove{Parent: c.attr(snap).Parent, Name: "s1", Directory: true})
		},
	}
}

func (c *client) chmod(inode uint64, mode uint32) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: inode, Valid: uint32(wire.SetAttrField_SET_ATTR_MODE), Mode: mode}}})
}

// A snapshot has what its directory had, without earlier snapshots. No request changes anything in
// it, whatever happens to the directory. It can be copied, and removed as a whole.
func TestSnapshots(t *testing.T) {
	for _, limit := range []uint32{1, 10, 1000} {
		t.Run(fmt.Sprint("pieces of ", limit), func(t *testing.T) {
			bn := newCluster(t, 1)
			c := bn.open(nil)
			src := c.sourceTree()
			ref := c.ok(c.cloneTree(src, c.root, "ref")).GetJobs().GetJobs()[0]
			for c.ended(ref.Id).State == wire.JobState_JOB_STATE_PENDING {
				bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, 1000)
			}
			alone := c.usage(src)
			snap := c.snapshot(src, "/src", "s1", limit)
			if both, ref := c.usage(src), c.usage(c.walkTo("/ref")); both[0] != alone[0]+ref[0] {
				t.Errorf("the directory uses %d bytes with its snapshot, %d before; a clone uses %d", both[0], alone[0], ref[0])
			}
			c.same("/ref", "/src/.snapshots/s1")
			for what, change := range c.changes(snap, "/src/.snapshots/s1") {
				if resp := change(); moraine.Kind(resp.GetError().GetKind()) != moraine.Immutable {
					t.Errorf("%s: answered %v", what, resp)
				}
				bn.check()
			}
			c.same("/ref", "/src/.snapshots/s1")

			c.ok(c.resize(c.walkTo("/src/large"), 5))
			c.ok(c.removeTree(src, "sub"))
			bn.settleJobs()
			c.snapshot(src, "/src", "s2", limit)
			c.same("/ref", "/src/.snapshots/s1")
			if c.exists("/src/.snapshots/s2/.snapshots") || c.exists("/src/.snapshots/s2/sub") {
				t.Error("the second snapshot has what its directory has not")
			}

			job := c.ok(c.cloneTree(snap, c.root, "again")).GetJobs().GetJobs()[0]
			for c.ended(job.Id).State == wire.JobState_JOB_STATE_PENDING {
				bn.runLeaderJob(wire.JobKind_JOB_KIND_CLONE_TREE, limit)
			}
			c.same("/ref", "/again")
			c.ok(c.resize(c.walkTo("/again/large"), 5))
			c.ok(c.remove(&wire.Remove{Parent: c.walkTo("/again/sub"), Name: "f0"}))

			c.ok(c.removeTree(c.walkTo("/src/.snapshots"), "s1"))
			bn.settleJobs()
			bn.check()
			if c.exists("/src/.snapshots/s1") {
				t.Error("the removed snapshot is there")
			}
			for _, name := range []string{"src", "ref", "again"} { // also with the snapshot below it
				c.ok(c.removeTree(c.root, name))
			}
			c.ok(c.remove(&wire.Remove{Parent: c.root, Name: "own"}))
			bn.settleJobs()
			bn.check()
			if n, err := kvtx.ReadCounters(bn.m.View(bn.kv)); err != nil || n.Stripes != 0 || n.Inodes != 1 {
				t.Errorf("%d stripes and %d inodes are left (%v)", n.Stripes, n.Inodes, err)
			}
		})
	}
}
