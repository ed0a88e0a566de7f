package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// deadOf returns the deletions of those chunks of device 1 that the state calls dead. They are in memory.
func (b *bench) deadOf(stripes ...uint64) string {
	b.t.Helper()
	op := &wire.ListMemory{Device: 1}
	for _, id := range stripes {
		op.OfGone = append(op.OfGone, &wire.ChunkReport{Stripe: id, Version: 1, Memory: true})
	}
	resp, err := b.m.Read(b.store(), &statepb.Caller{Node: "n1", Role: "chunkserver", Scope: "/"},
		&wire.MetaRequest{Partition: b.partition, Op: &wire.MetaRequest_ListMemory{ListMemory: op}})
	require.NoError(b.t, err)
	var out []string
	for _, d := range b.ok(resp).GetMemory().GetDead() {
		require.EqualValues(b.t, 1, d.Device)
		out = append(out, fmt.Sprintf("%x/%d<%d", d.Stripe, d.Index, d.Below))
	}
	return strings.Join(out, " ")
}

func dead(stripe uint64) string { return fmt.Sprintf("%x/0<2", stripe) }

// droppedOn reports that a host has dropped a chunk of device 1 that was in memory alone.
func (b *bench) droppedOn(node string, stripe uint64) *wire.MetaResponse {
	return b.as(node, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{DeletedChunks: &wire.DeletedChunks{
		Deleted: []*wire.Deletion{{Device: 1, Stripe: stripe, Below: 2, InMemory: true}}}}})
}

// TestAChunkInMemoryIsDeadWhenNoRecordCanNameIt: at once, when the last file with it is removed, and not while a
// clone has it. What was committed never waits for a grace or a backup horizon, and what was dropped does not count
// as kept for backups. A put that arrives late finds the tombstone, for the grace. What nobody committed is dead when
// its grant ends.
func TestAChunkInMemoryIsDeadWhenNoRecordCanNameIt(t *testing.T) {
	b := newCluster(t, 6)
	b.tick(1000)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	id := c.grant(f, 2) // the second one is never committed
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE,
		Stripes: []*wire.Stripe{c.inRAM(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	remove := func(name string) {
		b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: name}}}))
	}
	require.Empty(t, b.deadOf(id, id+1), "recorded, and under a live grant")
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: c.mkfile(c.root, "clone"),
		Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: f}}}}}))
	remove("f")
	require.Empty(t, b.deadOf(id, id+1), "a clone has it")
	remove("clone")
	require.Equal(t, dead(id), b.deadOf(id, id+1))
	plain, kept := b.deadOn(1, b.now(), 0, 0)
	require.Empty(t, plain)
	require.Empty(t, kept, "other chunks wait for the horizon")

	require.NotNil(t, b.droppedOn("n2", id).GetError(), "a host reports on its own devices")
	for range 2 { // its answer was lost
		b.ok(b.droppedOn("n1", id))
		n, err := kvtx.ReadCounters(b.m.View(b.kv))
		require.NoError(t, err)
		require.EqualValues(t, 2*4096, n.KeptBytes, "of the other two devices")
		require.EqualValues(t, 3*4096, n.PendingBytes)
		on, err := fleet.KeptOn(b.m.View(b.kv), 1)
		require.NoError(t, err)
		require.Zero(t, on.Gone, "the horizon is as long as before")
		b.check()
	}
	require.Equal(t, dead(id), b.deadOf(id, id+1), "a late put is dead too")
	b.tick(1000)
	plain, kept = b.deadOn(1, b.now()-1000, b.now(), 0)
	require.Equal(t, []uint64{id}, plain, "it is deleted after the grace")
	require.Empty(t, kept)
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_DropTombstones{DropTombstones: &statepb.DropTombstones{
		Deleted: []*wire.Deletion{{Device: 1, Stripe: id, Below: 2}}}}}).Response)
	require.Empty(t, b.deadOf(id, id+1), "the grant is live")
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: id}}}))
	require.Equal(t, dead(id)+" "+dead(id+1), b.deadOf(id, id+1))
	b.check()
}

// TestNoChunkInMemoryIsDeadAfterARestore: before every device has reported.
func TestNoChunkInMemoryIsDeadAfterARestore(t *testing.T) {
	b, c, id := restored(t)
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "f"}}}))
	require.Empty(t, b.deadOf(id))
	b.passes(1, 2, 3, 4, 5, 6)
	require.Equal(t, dead(id), b.deadOf(id))
}

// TestChunksInMemoryAreListedAsTheyWereCommitted: a device's server that has read the list reads only what was
// committed since, whatever the numbers of the stripes.
func TestChunksInMemoryAreListedAsTheyWereCommitted(t *testing.T) {
	b := newCluster(t, 6)
	c := b.open(nil)
	f, g := c.mkfile(c.root, "f"), c.mkfile(c.root, "g")
	early, late := c.grant(f, 3), c.grant(g, 3)
	commit := func(file, first uint64) {
		op := &wire.Commit{Inode: file, Mode: wire.CommitMode_COMMIT_MODE_REPLACE}
		for n := range uint64(3) {
			op.Stripes = append(op.Stripes, c.inRAM(first+n, 10, 1, 2, 3))
			op.Extents = append(op.Extents, extent(10*n, 10, first+n, 0))
		}
		b.ok(c.commit(op))
	}
	at := &wire.ListMemory{Device: 1, Limit: 2}
	since := func() (stripes []uint64) {
		for {
			resp, err := b.m.Read(b.store(), &statepb.Caller{Node: "n1", Role: "chunkserver", Scope: "/"},
				&wire.MetaRequest{Partition: b.partition, Op: &wire.MetaRequest_ListMemory{ListMemory: at}})
			require.NoError(t, err)
			page := b.ok(resp).GetMemory()
			for _, ch := range page.Chunks {
				stripes = append(stripes, ch.Stripe)
				at.After, at.AfterStripe, at.AfterIndex = page.At, ch.Stripe, ch.Index
			}
			if !page.More {
				return stripes
			}
		}
	}
	commit(g, late)
	require.Equal(t, []uint64{late, late + 1, late + 2}, since())
	require.Empty(t, since())
	commit(f, early)
	require.Equal(t, []uint64{early, early + 1, early + 2}, since())
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "f"}}}))
	require.Empty(t, since())
	require.Len(t, b.listed(1), 3)
	b.check()
}

// BenchmarkListMemory answers a settle pass of a device with 10,000 chunks in memory: of all, and of those that
// were recorded since the last one, which are none.
func BenchmarkListMemory(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(nil)
	const rows = 10_000
	f := c.mkfile(c.root, "f")
	for range rows / 100 {
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND}
		first := c.grant(f, 100)
		for i := range uint64(100) {
			op.Stripes = append(op.Stripes, c.inRAM(first+i, 10, 1, 2, 3))
			op.Extents = append(op.Extents, extent(10*i, 10, first+i, 0))
		}
		bn.ok(c.commit(op))
		bn.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}}))
	}
	pass := func(at *wire.ListMemory) (n int) {
		for {
			resp, err := bn.m.Read(bn.store(), &statepb.Caller{Node: "n1", Role: "chunkserver", Scope: "/"},
				&wire.MetaRequest{Op: &wire.MetaRequest_ListMemory{ListMemory: at}})
			if err != nil {
				b.Fatal(err)
			}
			page := bn.ok(resp).GetMemory()
			for _, ch := range page.Chunks {
				at.After, at.AfterStripe, at.AfterIndex = page.At, ch.Stripe, ch.Index
			}
			if n += len(page.Chunks); !page.More {
				return n
			}
		}
	}
	read := &wire.ListMemory{Device: 1}
	if n := pass(read); n != rows {
		b.Fatalf("%d rows", n)
	}
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			pass(&wire.ListMemory{Device: 1})
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			pass(read)
		}
	})
}
