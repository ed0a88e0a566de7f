package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func (b *bench) drop(chunks ...*wire.DroppedChunk) uint32 {
	b.t.Helper()
	return b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_DropChunks{DropChunks: &wire.DropChunks{Chunks: chunks}}})).GetDropChunks().GetDropped()
}

func (b *bench) fate(c *wire.DroppedChunk, olderThan uint64) fleet.Fate {
	b.t.Helper()
	v, err := fleet.ClassifyChunk(b.m.View(b.kv), moraine.DeviceID(c.Device), &wire.ChunkReport{Stripe: c.Stripe, Index: c.Index, Version: c.Version}, olderThan)
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Fate
}

// TestDropChunks: an administrator can drop unexplained chunks and no others: not live chunks, not
// chunks under a grant, and not chunks with a number not issued yet.
func TestDropChunks(t *testing.T) {
	b := newCluster(t, 4)
	b.tick(1000)
	early := b.open(nil)
	old := early.grant(early.mkfile(early.root, "g"), 2)
	b.ok(early.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: old}}}))
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	id := c.grant(f, 4)
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	at := func(stripe uint64, version uint32) *wire.DroppedChunk {
		return &wire.DroppedChunk{Device: 4, Stripe: stripe, Version: version, Length: 4096}
	}
	granted, later := at(id+2, 1), at(id+1000, 1)
	if n := b.drop(granted, later, at(id, 7), at(0, 1), at(id, 0)); n != 0 {
		t.Fatalf("%d chunks were dropped that are explained, or may be put yet", n)
	}
	stray := at(old+1, 3)
	if n := b.drop(stray); n != 0 {
		t.Fatal("a chunk was dropped that an ended grant explains")
	}
	for device := range uint64(4) { // every device has reported since, so the grant is forgotten
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{
			Device: uint32(device + 1), PassStarted: 1 << 20}}}).Response)
	}
	if b.fate(stray, 0) != fleet.Unknown {
		t.Fatalf("a stray chunk is %v", b.fate(stray, 0))
	}
	gone := at(old+1, 3)
	gone.Device = 9
	if n := b.drop(gone, at(old+1, 1<<32-1)); n != 0 {
		t.Fatalf("%d chunks were dropped that no deletion can reach", n)
	}
	for range 2 { // the first answer was lost
		if n := b.drop(stray); n != 1 {
			t.Fatalf("%d chunks were dropped", n)
		}
		if n, err := kvtx.ReadCounters(b.m.View(b.kv)); err != nil || n.PendingBytes != 4096 {
			t.Fatalf("%d bytes are pending: %v", n.PendingBytes, err)
		}
	}
	if have := b.fate(stray, 0); have != fleet.Pending {
		t.Fatalf("within the grace it is %v", have)
	}
	if have := b.fate(stray, 1<<40); have != fleet.Dead {
		t.Fatalf("after the grace it is %v", have)
	}
	b.check()
	b.keepLog("v1-drop-chunks")
}

// TestDropChunksOnARetiredDevice: the chunks went with the device, and the answer counts none as
// deleted.
func TestDropChunksOnARetiredDevice(t *testing.T) {
	b := newCluster(t, 4)
	c := b.open(nil)
	old := c.grant(c.mkfile(c.root, "f"), 1)
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: old}}}))
	for device := range uint32(4) { // the grant is forgotten
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{
			Device: device + 1, PassStarted: 1 << 20}}}).Response)
	}
	for _, to := range []wire.DeviceState{wire.DeviceState_DEVICE_STATE_OUT, wire.DeviceState_DEVICE_STATE_RETIRED} {
		b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: 4, State: to}}}))
		b.settleScans()
	}
	stray := func(device uint32) *wire.DroppedChunk {
		return &wire.DroppedChunk{Device: device, Stripe: old, Version: 1, Length: 4096}
	}
	if n := b.drop(stray(4)); n != 0 {
		t.Fatalf("%d chunks of a device that is gone were dropped", n)
	}
	if n := b.drop(stray(3)); n != 1 {
		t.Fatalf("%d chunks were dropped", n)
	}
	b.check()
}
