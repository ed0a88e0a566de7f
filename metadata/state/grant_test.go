package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// commitCase is a session with a grant and an unlinked file, and the commit
// that would fill it.
type commitCase struct {
	*client
	file  uint64
	first uint64
	op    *wire.Commit
}

func newCommitCase(t *testing.T) *commitCase {
	b := newCluster(t, 6)
	c := &commitCase{client: b.open(nil)}
	c.file = b.ok(c.create(&wire.Create{Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR})).GetEntry().GetAttr().GetInode()
	c.first = c.grant(0, 8)
	c.op = &wire.Commit{Inode: c.file, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe(c.first, 1<<20, 1, 2, 3, 4, 5, 6), stripe(c.first+1, 100, 1, 2, 3)},
		Extents: []*wire.Extent{extent(0, 1<<20, c.first, 0), extent(1<<20, 100, c.first+1, 0)},
		Link:    &wire.LinkTarget{Parent: c.root, Name: "f"}}
	return c
}

func (c *client) setState(device uint32, state wire.DeviceState) {
	c.t.Helper()
	c.ok(c.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: device, State: state, Reason: "test"}}}))
}

// Faults between the grant and the commit: each step fails, and each step succeeds but its reply is
// lost.
func TestGrantAndCommitFaults(t *testing.T) {
	overlayAgain := func(c *commitCase) {
		c.ok(c.commit(proto.Clone(c.op).(*wire.Commit)))
		c.op.Mode, c.op.Link = wire.CommitMode_COMMIT_MODE_OVERLAY, nil
	}
	for _, row := range []struct {
		what     string
		fault    func(c *commitCase)
		want     string
		degraded uint32
		protects uint32
	}{
		{"nothing", func(*commitCase) {}, "ok", 0, 2},
		{"the commit's reply is lost, it comes again under a new number", func(c *commitCase) {
			c.ok(c.commit(proto.Clone(c.op).(*wire.Commit)))
		}, "ok", 0, 2},
		{"it comes again as another mode at the same place", overlayAgain, "ok", 0, 2},
		{"it comes again with other bytes", func(c *commitCase) {
			c.ok(c.commit(proto.Clone(c.op).(*wire.Commit)))
			c.op.Stripes[0].Chunks[2].Crc++
		}, "stale", 0, 0},
		{"it comes again for other places", func(c *commitCase) {
			overlayAgain(c)
			c.op.Extents[0].Length--
			c.op.Extents[0].Offset++
		}, "stale", 0, 0},
		{"it comes again with one more stripe", func(c *commitCase) {
			overlayAgain(c)
			c.op.Stripes = append(c.op.Stripes, stripe(c.first+2, 1, 1, 2, 3))
			c.op.Extents = append(c.op.Extents, extent(2<<20, 1, c.first+2, 0))
		}, "stale", 0, 0},
		{"it comes again after an overwrite", func(c *commitCase) {
			overlayAgain(c)
			c.ok(c.commit(&wire.Commit{Inode: c.file, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3,
				Stripes: []*wire.Stripe{stripe(c.first+2, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(5, 10, c.first+2, 0)}}))
		}, "stale", 0, 0},
		{"it comes again after the file died", func(c *commitCase) {
			c.ok(c.commit(proto.Clone(c.op).(*wire.Commit)))
			c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "f"}}}))
		}, "not found", 0, 0},
		{"it comes again, for another file, after its stripes died", func(c *commitCase) {
			c.ok(c.commit(proto.Clone(c.op).(*wire.Commit)))
			c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "f"}}}))
			c.op.Inode, c.op.Link = c.mkfile(c.root, "g"), nil
		}, "stale", 0, 0},
		{"the grant was given back", func(c *commitCase) {
			c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: c.first}}}))
		}, "stale", 0, 0},
		{"the grant is another session's", func(c *commitCase) {
			c.first = c.bench.open(nil).grant(0, 8)
			c.op.Stripes[0].Id, c.op.Extents[0].Stripe = c.first, c.first
		}, "stale", 0, 0},
		{"a number past the grant", func(c *commitCase) {
			c.op.Stripes[1].Id, c.op.Extents[1].Stripe = c.first+8, c.first+8
		}, "stale", 0, 0},
		{"a number before the grant", func(c *commitCase) {
			c.op.Stripes[1].Id, c.op.Extents[1].Stripe = c.first-1, c.first-1
		}, "stale", 0, 0},
		{"the session expired", func(c *commitCase) {
			c.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}})
		}, "session expired", 0, 0},
		{"a device is unknown", func(c *commitCase) { c.op.Stripes[0].Chunks[3].Device = 99 }, "stale", 0, 0},
		{"a device was retired", func(c *commitCase) {
			c.setState(4, wire.DeviceState_DEVICE_STATE_OUT)
			c.setState(4, wire.DeviceState_DEVICE_STATE_RETIRED)
		}, "stale", 0, 0},
		{"a device of one stripe went out", func(c *commitCase) { c.setState(4, wire.DeviceState_DEVICE_STATE_OUT) }, "ok", 1, 1},
		{"a device of both stripes went out", func(c *commitCase) { c.setState(1, wire.DeviceState_DEVICE_STATE_OUT) }, "ok", 2, 1},
		{"a device is draining", func(c *commitCase) { c.setState(5, wire.DeviceState_DEVICE_STATE_DRAINING) }, "ok", 1, 2},
		{"two chunks share a host", func(c *commitCase) { c.op.Stripes[0].Chunks[0].Device = 2 }, "ok", 1, 1},
		{"three chunks share a host", func(c *commitCase) {
			c.op.Stripes[0].Chunks[0].Device, c.op.Stripes[0].Chunks[2].Device = 2, 2
		}, "ok", 1, 0},
		{"a memory copy of the present boot", func(c *commitCase) {
			c.op.Stripes[1].Chunks[0].Level, c.op.Stripes[1].Chunks[0].Epoch = uint32(moraine.Memory), 1
		}, "ok", 0, 2},
		{"a memory copy of another boot", func(c *commitCase) {
			c.op.Stripes[1].Chunks[0].Level, c.op.Stripes[1].Chunks[0].Epoch = uint32(moraine.Memory), 7
		}, "stale", 0, 0},
		{"a chunk at no level", func(c *commitCase) { c.op.Stripes[1].Chunks[0].Level = 1 }, "invalid argument", 0, 0},
		{"a chunk too few", func(c *commitCase) { c.op.Stripes[0].Chunks = c.op.Stripes[0].Chunks[:5] }, "invalid argument", 0, 0},
		{"an extent past its stripe", func(c *commitCase) { c.op.Extents[1].Length++ }, "invalid argument", 0, 0},
		{"an extent of a stripe that is not there", func(c *commitCase) { c.op.Extents[1].Stripe += 2 }, "invalid argument", 0, 0},
		{"a stripe that no extent names", func(c *commitCase) { c.op.Extents = c.op.Extents[:1] }, "invalid argument", 0, 0},
		{"a file past its largest size", func(c *commitCase) { c.op.Extents[1].Offset = 1 << 60 }, "invalid argument", 0, 0},
		{"an offset that wraps around", func(c *commitCase) { c.op.Extents[1].Offset = 1<<64 - 50 }, "invalid argument", 0, 0},
		{"a scheme of too many chunks", func(c *commitCase) { c.op.Stripes[0].Scheme = &wire.Scheme{K: 1 << 31, M: 1 << 31} }, "invalid argument", 0, 0},
		{"the name is taken", func(c *commitCase) { c.mkfile(c.root, "f") }, "already exists", 0, 0},
		{"the name is taken, and may be replaced", func(c *commitCase) {
			c.mkfile(c.root, "f")
			c.op.Link.Replace = true
		}, "ok", 0, 2},
		{"the name is a directory's", func(c *commitCase) {
			c.mkdir(c.root, "f")
			c.op.Link.Replace = true
		}, "is a directory", 0, 0},
		{"the directory to link in was removed", func(c *commitCase) {
			c.op.Link.Parent = c.mkdir(c.root, "d")
			c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "d", Directory: true}}}))
		}, "not found", 0, 0},
		{"the directory to link in is another tenant's", func(c *commitCase) {
			c.op.Link.Parent = c.ok(c.create(&wire.Create{Parent: c.root, Name: "t", Type: wire.FileType_FILE_TYPE_DIRECTORY, Tenant: "t"})).GetEntry().GetAttr().GetInode()
		}, "crosses tenants", 0, 0},
		{"the grant was for another tenant", func(c *commitCase) {
			dir := c.ok(c.create(&wire.Create{Parent: c.root, Name: "t", Type: wire.FileType_FILE_TYPE_DIRECTORY, Tenant: "t"})).GetEntry().GetAttr().GetInode()
			c.op.Inode = c.mkfile(dir, "f")
			c.op.Link = nil
		}, "crosses tenants", 0, 0},
		{"another session's unlinked file", func(c *commitCase) {
			other := c.bench.open(nil)
			c.op.Inode = c.ok(other.create(&wire.Create{Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR})).GetEntry().GetAttr().GetInode()
		}, "permission denied", 0, 0},
		{"a file that has a name is linked", func(c *commitCase) { c.op.Inode = c.mkfile(c.root, "g") }, "invalid argument", 0, 0},
		{"the generation moved on", func(c *commitCase) { c.op.ExpectGeneration = 5 }, "conflict", 0, 0},
		{"a commit of too many stripes", func(c *commitCase) {
			for range 300 {
				c.op.Stripes = append(c.op.Stripes, c.op.Stripes[0])
			}
		}, "too large", 0, 0},
	} {
		t.Run(row.what, func(t *testing.T) {
			c := newCommitCase(t)
			row.fault(c)
			resp := c.commit(c.op)
			if got := kind(resp); got != row.want {
				t.Fatalf("commit: %s (%s), want %s", got, resp.GetError().GetText(), row.want)
			}
			if r := resp.GetCommit(); r.GetDegraded() != row.degraded || r.GetProtects() != row.protects {
				t.Errorf("degraded %d, protects %d; want %d and %d", r.GetDegraded(), r.GetProtects(), row.degraded, row.protects)
			}
			c.check()
			n, err := kvtx.ReadCounters(c.m.View(c.kv))
			if err != nil || row.want == "ok" && n.RepairQueued != uint64(row.degraded) {
				t.Errorf("%d stripes wait for repair, want %d (%v)", n.RepairQueued, row.degraded, err)
			}
		})
	}
}

// The file has its bytes and its name, or neither.
func TestUnlinkedFileAppearsWhole(t *testing.T) {
	c := newCommitCase(t)
	half := proto.Clone(c.op).(*wire.Commit)
	half.Stripes, half.Extents, half.Link = half.Stripes[:1], half.Extents[:1], nil
	c.ok(c.commit(half))
	if c.walk("/f").GetWalk().GetFound() {
		t.Fatal("visible before its last commit")
	}
	c.op.Stripes, c.op.Extents = c.op.Stripes[1:], []*wire.Extent{extent(0, 100, c.first+1, 0)}
	c.op.Final = true
	c.ok(c.commit(c.op))
	a := c.walk("/f").GetWalk().GetAttr()
	if a.GetSize() != 1<<20+100 || a.GetNlink() != 1 || a.GetInode() != c.file || a.GetParent() != c.root {
		t.Fatalf("attributes: %v", a)
	}
	c.check()
}

// The number and size of grants have bounds.
func TestGrantBounds(t *testing.T) {
	b := newCluster(t, 1)
	c := b.open(nil)
	grant := func(count uint32) string {
		return kind(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: count,
			Scheme: &wire.Scheme{K: 1}, ChunkLength: 4096}}})) // so that the bound on bytes does not apply
	}
	if got := grant(0) + ", " + grant(1025); got != "invalid argument, invalid argument" {
		t.Error(got)
	}
	for n := range 256 {
		if got := grant(1024); got != "ok" {
			t.Fatalf("grant %d: %s", n, got)
		}
	}
	if got := grant(1); got != "too large" {
		t.Error(got)
	}
	b.check()
}

// TestGrantsBoundTheBytesOfASession: no quota counts the chunks that a session writes and does not
// commit. Its grants together allow a bounded number of bytes, whatever scheme and length they
// name. Ending one makes room.
func TestGrantsBoundTheBytesOfASession(t *testing.T) {
	b := newCluster(t, 6)
	c := b.open(nil)
	ask := func(c *client, count uint32, k, m uint32, length uint64) *wire.MetaResponse {
		return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: c.root, Count: count,
			Scheme: &wire.Scheme{K: k, M: m}, ChunkLength: length}}})
	}
	var firsts []uint64
	total := uint64(0)
	for {
		resp := ask(c, fleet.MaxGrant, 12, 4, moraine.MaxChunkSize)
		if resp.GetError() != nil {
			if k := kind(resp); k != "too large" {
				t.Fatalf("with %d bytes granted: %s", total, k)
			}
			break
		}
		firsts = append(firsts, resp.GetGrant().GetFirst())
		if total += fleet.MaxGrant * 16 * moraine.MaxChunkSize; total > fleet.MaxSessionBytes {
			t.Fatalf("%d bytes are granted, more than %d", total, uint64(fleet.MaxSessionBytes))
		}
	}
	if total != fleet.MaxSessionBytes {
		t.Errorf("refused at %d bytes, want %d", total, uint64(fleet.MaxSessionBytes))
	}
	if k := kind(ask(c, 1, 1, 0, 1)); k != "too large" {
		t.Errorf("one more byte: %s", k)
	}
	if k := kind(ask(b.open(nil), 1, 1, 0, 1)); k != "ok" {
		t.Errorf("another session: %s", k)
	}
	g, live, err := fleet.LiveGrant(b.m.View(b.kv), moraine.StripeID(firsts[0]))
	if err != nil || !live || g.Chunks != 16 || g.ChunkLength != moraine.MaxChunkSize {
		t.Errorf("the grant is %+v, %t (%v)", g, live, err)
	}
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: firsts[0]}}}))
	for _, bad := range []struct {
		k, m   uint32
		length uint64
	}{{0, 0, 1}, {moraine.MaxChunks, 1, 1}, {1<<32 - 1, 2, 1}, {4, 2, moraine.MaxChunkSize + 1}, {4, 2, 1 << 32}, {4, 2, 1<<64 - 1}} {
		if k := kind(ask(c, 1, bad.k, bad.m, bad.length)); k != "invalid argument" {
			t.Errorf("%+v: %s", bad, k)
		}
	}
	if k := kind(ask(c, 1, 1, 0, 1)); k != "ok" {
		t.Errorf("after a grant has ended: %s", k)
	}
	b.check()
}

// A session does not learn which stripe numbers others may write.
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
