package state_test

import (
	"fmt"
	"testing"

	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// BenchmarkCreate applies empty creates, 64 to an entry, including decoding. The store is a map in
// memory, so that the benchmark measures the state machine alone.
func BenchmarkCreate(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(nil)
	dir := c.mkdir(c.root, "d")
	const group = 64
	var entries [][]byte
	for n := 0; n < b.N; n += group {
		var raw [][]byte
		for i := range group {
			req := c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
				Parent: dir, Name: fmt.Sprintf("file-%d", n+i), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}})
			p, err := proto.Marshal(bn.command(&statepb.Command{Caller: &statepb.Caller{Node: c.node, Role: "client"}, Op: &statepb.Command_Request{Request: req}}))
			if err != nil {
				b.Fatal(err)
			}
			raw = append(raw, p)
		}
		entries = append(entries, state.EncodeEntry(raw))
	}
	gets, sets := bn.kv.Gets, bn.kv.Sets
	b.ReportAllocs()
	b.ResetTimer()
	for _, e := range entries {
		bn.index++
		if _, err := applyEntry(bn.m, bn.kv, bn.index, e); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bn.kv.Gets-gets)/float64(b.N), "gets/op")
	b.ReportMetric(float64(bn.kv.Sets-sets)/float64(b.N), "sets/op")
}

// BenchmarkBatch applies empty creates, 256 to a batch, as BenchmarkCreate does.
func BenchmarkBatch(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(leased)
	dir := c.mkdir(c.root, "d")
	const group = 256
	var entries [][]byte
	next := c.delegate(dir, 65_536).First
	for range 3 { // a session keeps four reservations, and these follow each other
		c.delegate(0, 65_536)
	}
	if b.N > 4*65_536 {
		b.Skip("there are no more reserved numbers: use -benchtime=200000x")
	}
	for n := 0; n < b.N; n += group {
		batch := &wire.Batch{}
		for i := range uint64(group) {
			batch.Ops = append(batch.Ops, makingFile(next+i, dir, fmt.Sprintf("file-%d", next+i)))
		}
		next += group
		p, err := proto.Marshal(bn.command(&statepb.Command{Caller: &statepb.Caller{Node: c.node, Role: "client"},
			Op: &statepb.Command_Request{Request: c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Batch{Batch: batch}})}}))
		if err != nil {
			b.Fatal(err)
		}
		entries = append(entries, state.EncodeEntry([][]byte{p}))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, e := range entries {
		bn.index++
		if _, err := applyEntry(bn.m, bn.kv, bn.index, e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGetAttr answers stats of one inode.
func BenchmarkGetAttr(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(nil)
	f := c.mkfile(c.root, "f")
	req := &wire.MetaRequest{Session: c.id, Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: f}}}
	caller := &statepb.Caller{Node: c.node}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bn.m.Read(bn.kv, caller, req); err != nil {
			b.Fatal(err)
		}
	}
}

// nextGrant returns the grant of the n-th stripe, of 512 each. It ends the one before: a session may
// have only so many.
func (bn *bench) nextGrant(c *client, first uint64, n int) uint64 {
	if n%512 != 0 {
		return first
	}
	if n > 0 {
		bn.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}}))
	}
	return c.grant(0, 512)
}

// BenchmarkSmallFile creates, fills and links a file of one x3 stripe: the two commands of saving a
// small file, each in its own entry.
func BenchmarkSmallFile(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(nil)
	dir := c.mkdir(c.root, "d")
	var first uint64
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		first = bn.nextGrant(c, first, n)
		id := first + uint64(n%512)
		f := bn.ok(c.create(&wire.Create{Unlinked: true, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644})).GetEntry().GetAttr().GetInode()
		bn.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
			Stripes: []*wire.Stripe{stripe(id, 4096, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 4096, id, 0)},
			Link: &wire.LinkTarget{Parent: dir, Name: fmt.Sprint(n)}}))
	}
}

// BenchmarkCommit appends 64 stripes of 4+2 to a file in one command.
func BenchmarkCommit(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(nil)
	f := c.mkfile(c.root, "f")
	b.ReportAllocs()
	for b.Loop() {
		first := c.grant(0, 64)
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: 3}
		for i := range uint64(64) {
			op.Stripes = append(op.Stripes, stripe(first+i, 16<<20, 1, 2, 3, 4, 5, 6))
			op.Extents = append(op.Extents, extent(i*16<<20, 16<<20, first+i, 0))
		}
		bn.ok(c.commit(op))
		bn.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}}))
	}
}

// BenchmarkUnlink removes files of one x3 stripe each, every one in an entry of
// its own.
func BenchmarkUnlink(b *testing.B) {
	bn := newCluster(b, 6)
	c := bn.open(nil)
	dir := c.mkdir(c.root, "d")
	var first uint64
	for n := range b.N {
		first = bn.nextGrant(c, first, n)
		f := bn.ok(c.create(&wire.Create{Parent: dir, Name: fmt.Sprint(n), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644})).GetEntry().GetAttr().GetInode()
		id := first + uint64(n%512)
		bn.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
			Stripes: []*wire.Stripe{stripe(id, 4096, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 4096, id, 0)}}))
	}
	gets, sets := bn.kv.Gets, bn.kv.Sets
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		bn.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: dir, Name: fmt.Sprint(n)}}}))
	}
	b.ReportMetric(float64(bn.kv.Gets-gets)/float64(b.N), "gets/op")
	b.ReportMetric(float64(bn.kv.Sets-sets)/float64(b.N), "sets/op")
}
