package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
)

// Two partitions live in one store: each machine reads and writes keys of its
// own only, numbers do not collide, and a request for one is refused by the
// other.
func TestTwoPartitionsInOneStore(t *testing.T) {
	kv := statetest.NewKV()
	var benches []*bench
	for p := range moraine.Partition(2) {
		b := &bench{t: t, m: state.New(p), kv: kv, wall: 1e9, node: "c1"}
		b.fence = &statetest.Fenced{KV: kv, Prefix: []byte{0, byte(p)}}
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: make([]byte, 16), Incarnation: 1}}}).Response)
		b.partition = uint32(p)
		for _, h := range []string{"n1", "n2", "n3"} {
			b.registerHost(h, 1)
		}
		benches = append(benches, b)
	}
	zero, one := benches[0], benches[1]
	c := zero.open(nil)
	dir := c.mkdir(c.root, "d")
	f := c.mkfile(dir, "f")
	g := c.grant(f, 4)
	c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: 3,
		Stripes: []*wire.Stripe{stripe(g, 9, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 9, g, 0)}}))
	c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: f}}}))
	c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: c.root, Name: "d"}}}))
	zero.tick(1000)
	zero.check()
	// The other partition has no tree of its own yet; a session there gets
	// numbers of that partition.
	d := one.open(nil)
	if p := moraine.ID(d.id).Partition(); p != 1 {
		t.Errorf("session %x is of partition %d", d.id, p)
	}
	one.tick(1000)
	one.check()
	zero.check()
	req := createReq(c.root, "x")
	req.Partition = 1
	if got := kind(zero.as("c1", "client", req)); got != "crosses partitions" {
		t.Errorf("a request for another partition: %s", got)
	}
}
