package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// A file is written, read, overwritten, truncated and removed. Only tombstones are left.
func TestLifeOfAFile(t *testing.T) {
	b := newCluster(t, 6)
	c := b.open(nil)
	before := b.kv.Len()
	dir := c.mkdir(c.root, "d")
	attr := c.ok(c.create(&wire.Create{Parent: dir, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Unlinked: true})).GetEntry().GetAttr()
	g := c.grant(attr.Inode, 4)
	resp := c.ok(c.commit(&wire.Commit{Inode: attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe(g, 1<<20, 1, 2, 3, 4, 5, 6), stripe(g+1, 1000, 1, 2, 3)},
		Extents: []*wire.Extent{extent(0, 1<<20, g, 0), extent(1<<20, 1000, g+1, 0)},
		Link:    &wire.LinkTarget{Parent: dir, Name: "f"}})).GetCommit()
	if resp.Protects != 2 || resp.Degraded != 0 || resp.Attr.Size != 1<<20+1000 || resp.Attr.Level != uint32(moraine.NVMe) {
		t.Fatalf("commit: %v", resp)
	}
	b.check()
	w := c.ok(c.walk("/d/f")).GetWalk()
	if !w.Found || w.Attr.Inode != attr.Inode || w.Attr.Stored != 1<<20+1000 {
		t.Fatalf("walk: %v", w)
	}
	x := c.ok(c.extents(attr.Inode, 0, 0)).GetExtents()
	if len(x.Extents) != 2 || len(x.Stripes) != 2 || len(x.Stripes[0].Chunks) != 6 {
		t.Fatalf("extents: %v", x)
	}
	c.ok(c.commit(&wire.Commit{Inode: attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe(g+2, 500, 4, 5, 6)}, Extents: []*wire.Extent{extent(1000, 500, g+2, 0)}}))
	b.check()
	x = c.ok(c.extents(attr.Inode, 0, 0)).GetExtents()
	if len(x.Extents) != 4 || len(x.Stripes) != 3 {
		t.Fatalf("extents after overlay: %v", x)
	}
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: attr.Inode, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: 1200}}}))
	b.check()
	x = c.ok(c.extents(attr.Inode, 0, 0)).GetExtents()
	if len(x.Extents) != 2 || x.Attr.Size != 1200 || x.Attr.Stored != 1200 {
		t.Fatalf("extents after truncation: %v", x)
	}
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir, Name: "f"}}}))
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "d", Directory: true}}}))
	b.check()
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
	b.check()
	counters, err := kvtx.ReadCounters(b.m.View(b.kv))
	if err != nil || counters.Stripes != 0 || counters.Inodes != 1 || counters.Sessions != 0 || counters.PendingBytes == 0 {
		t.Fatalf("counters: %+v %v", counters, err)
	}
	t.Logf("%d pairs before, %d after", before, b.kv.Len())
}
