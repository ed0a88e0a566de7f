package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/transport/wire"
)

// packing is four small files of 10, 20, 30 and 40 bytes, each one stripe of three copies, and a
// mover with the job to pack them.
type packing struct {
	*moving
	files   []uint64
	stripes []uint64
}

func newPacking(t *testing.T) *packing {
	b := &packing{moving: newMoving(t, 7)}
	for n := range uint64(4) {
		b.files = append(b.files, b.small(fmt.Sprint("f", n), 10*(n+1)))
	}
	b.check()
	return b
}

// small makes a small file.
func (b *packing) small(name string, size uint64) (id uint64) {
	b.t.Helper()
	id = b.c.mkfile(b.c.root, name)
	s := b.c.grant(id, 1)
	b.ok(b.c.commit(&wire.Commit{Inode: id, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(s, size, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, size, s, 0)}}))
	b.stripes = append(b.stripes, s)
	return id
}

func (b *packing) begin() {
	b.t.Helper()
	b.moving.begin(&wire.Job{Rewrite: &wire.RewriteTask{Files: b.files, Settled: b.stripes[3]}}, b.files[0])
}

// op packs all files into one 4+2 stripe, one after the other.
func (b *packing) op() *wire.CommitRewrite {
	op := &wire.CommitRewrite{Job: b.job.Id, LeaseEpoch: b.job.LeaseEpoch}
	at := uint64(0)
	for n, f := range b.files {
		size := 10 * uint64(n+1)
		op.Files = append(op.Files, &wire.RewrittenFile{Inode: f,
			Extents: []*wire.Extent{extent(0, size, b.fresh, at)}, Was: []*wire.Extent{extent(0, size, b.stripes[n], 0)}})
		at += size
	}
	op.Stripes = []*wire.Stripe{stripe(b.fresh, at, 1, 2, 3, 4, 5, 6)}
	return op
}

// packed says whether each file has the new stripe: 1, 0, or - for a removed file.
func (b *packing) packed() string {
	b.t.Helper()
	out := ""
	for _, f := range b.files {
		resp := b.c.extents(f, 0, 0)
		switch exts := resp.GetExtents().GetExtents(); {
		case resp.GetError() != nil:
			out += "-"
		case slices.ContainsFunc(exts, func(e *wire.Extent) bool { return e.Stripe == b.fresh }):
			out += "1"
		default:
			out += "0"
		}
	}
	return out
}

func (b *packing) remove(n int) {
	b.t.Helper()
	b.ok(b.c.remove(&wire.Remove{Parent: b.c.root, Name: fmt.Sprint("f", n)}))
}

// write overwrites one byte of a file.
func (b *packing) write(n int, off uint64) {
	b.t.Helper()
	id := b.c.grant(b.files[n], 1)
	b.ok(b.c.commit(&wire.Commit{Inode: b.files[n], Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3,
		Stripes: []*wire.Stripe{stripe(id, 1, 1, 2, 3)}, Extents: []*wire.Extent{extent(off, 1, id, 0)}}))
}

// TestPackFiles covers the life of a pack; each step may be retried. The files keep their
// generations and times, their old stripes die, and each file refers to the new one. The new stripe
// dies with the last of them.
func TestPackFiles(t *testing.T) {
	b := newPacking(t)
	b.begin()
	if !slices.Equal(b.job.Rewrite.Files, b.files) || b.job.Inode != 0 || b.job.Rewrite.Settled != b.stripes[3] || b.job.Subject != "4 small files, f0 the first" {
		t.Fatalf("leased %v", b.job)
	}
	var before []*wire.Attr
	for _, f := range b.files {
		before = append(before, b.c.attr(f))
	}
	for range 2 { // the answer was lost, and with it its number
		r := b.ok(b.commit(b.op())).GetRewrite()
		if !slices.Equal(r.GetRewritten(), b.files) || r.Protects != 2 || b.packed() != "1111" {
			t.Fatalf("packed %v, %s", r, b.packed())
		}
		b.check()
	}
	for n, f := range b.files {
		if after := b.c.attr(f); !proto.Equal(after, before[n]) {
			t.Fatalf("it was %v and is %v", before[n], after)
		}
		if b.stripe(b.stripes[n]) != nil {
			t.Fatal("the stripe of a file that was packed lives on")
		}
	}
	if s := b.stripe(b.fresh); s.LiveBytes != 100 || s.RefCount != 4 {
		t.Fatalf("%+v", s)
	}
	b.ok(b.finish(""))
	b.ok(b.c.clone(&wire.Clone{Inode: b.c.mkfile(b.c.root, "clone"), Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: b.files[2]}}}))
	b.write(1, 5)
	b.check()
	for n := range b.files {
		b.remove(n)
		b.check()
	}
	if s := b.stripe(b.fresh); s == nil || s.RefCount != 1 {
		t.Fatalf("a clone has %+v", s)
	}
	b.ok(b.c.remove(&wire.Remove{Parent: b.c.root, Name: "clone"}))
	if b.stripe(b.fresh) != nil {
		t.Fatal("it lives without a file")
	}
	b.check()
	b.keepLog("v1-pack")
}

// TestPackLeavesOut covers changes by others between the mover's look at the files and its commit.
// The commit skips files that changed, are gone or are shared, and packs the rest, whether it is
// sent once or twice.
func TestPackLeavesOut(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(b *packing)
		want string
		refs uint32
		live int64
	}{
		"a byte is overwritten":   {func(b *packing) { b.write(1, 3) }, "1011", 3, 80},
		"one is appended to":      {func(b *packing) { b.write(1, 20) }, "1111", 4, 100},
		"the first is removed":    {func(b *packing) { b.remove(0) }, "-111", 3, 90},
		"the last is cut off":     {func(b *packing) { b.ok(b.c.resize(b.files[3], 39)) }, "1110", 3, 60},
		"one is emptied":          {func(b *packing) { b.ok(b.c.resize(b.files[0], 0)) }, "0111", 3, 90},
		"all but one are removed": {func(b *packing) { b.remove(0); b.remove(2); b.remove(3) }, "-1--", 1, 20},
		"one is renamed": {func(b *packing) {
			b.ok(b.c.rename(&wire.Rename{Parent: b.c.root, Name: "f0", NewParent: b.c.root, NewName: "g"}))
		}, "1111", 4, 100},
		"one replaces another": {func(b *packing) {
			b.ok(b.c.rename(&wire.Rename{Parent: b.c.root, Name: "f0", NewParent: b.c.root, NewName: "f1"}))
		}, "1-11", 3, 80},
		"one is cloned":            {func(b *packing) { b.cloneOf(2) }, "1101", 3, 70},
		"one is cloned, then gone": {func(b *packing) { b.cloneOf(2); b.remove(2) }, "11-1", 3, 70},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPacking(t)
			b.begin()
			tt.do(b)
			b.check()
			for range 2 {
				r := b.ok(b.commit(b.op())).GetRewrite()
				if have := b.packed(); have != tt.want || len(r.Rewritten) != strings.Count(have, "1") {
					t.Fatalf("packed are %s, told %v, want %s", have, r.Rewritten, tt.want)
				}
				if s := b.stripe(b.fresh); s.RefCount != tt.refs || s.LiveBytes != tt.live {
					t.Fatalf("%+v, want %d tables, %d bytes", s, tt.refs, tt.live)
				}
				b.check()
			}
			b.ok(b.finish(""))
			b.check()
			if name == "one is cloned" {
				b.keepLog("v1-pack-leaves-out")
			}
		})
	}
}

// cloneOf makes a clone of a file.
func (b *packing) cloneOf(n int) {
	b.t.Helper()
	b.ok(b.c.clone(&wire.Clone{Inode: b.c.mkfile(b.c.root, "clone"), Mode: wire.CommitMode_COMMIT_MODE_REPLACE,
		Ranges: []*wire.CloneRange{{Inode: b.files[n]}}}))
}

// TestPackGivesWay: the commit has no effect if every file changed or another mover has the job.
func TestPackGivesWay(t *testing.T) {
	for name, tt := range map[string]struct {
		do      func(b *packing)
		refused moraine.Kind
	}{
		"all changed": {func(b *packing) {
			for n := range b.files {
				b.write(n, 1)
			}
		}, moraine.Stale},
		"all are removed": {func(b *packing) {
			for n := range b.files {
				b.remove(n)
			}
		}, moraine.NotFound},
		"the lease ended, and another has the job": {func(b *packing) { b.passOn() }, moraine.Fenced},
		"the job is canceled":                      {func(b *packing) { b.cancel() }, moraine.Fenced},
		"the mover's session has ended":            {func(b *packing) { b.endSession() }, moraine.SessionExpired},
		"it was committed, and all changed since": {func(b *packing) {
			b.ok(b.commit(b.op()))
			for n := range b.files {
				b.ok(b.c.resize(b.files[n], 1))
			}
		}, moraine.Stale},
		"it was committed, and all are removed since": {func(b *packing) {
			b.ok(b.commit(b.op()))
			for n := range b.files {
				b.remove(n)
			}
		}, moraine.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			b := newPacking(t)
			b.begin()
			tt.do(b)
			before := b.packed()
			b.wants(b.commit(b.op()), tt.refused)
			if have := b.packed(); have != before {
				t.Fatalf("a commit that was refused made %s of %s", have, before)
			}
			b.check()
		})
	}
}

// TestPackRefuses: a commit that does not state exactly what it replaces changes nothing.
func TestPackRefuses(t *testing.T) {
	b := newPacking(t)
	files := func(ids ...uint64) *wire.RewriteTask { return &wire.RewriteTask{Files: ids} }
	for name, job := range map[string]*wire.Job{
		"too many files":     {Rewrite: files(slices.Repeat(b.files, content.MaxPackFiles)...)},
		"files out of order": {Rewrite: files(b.files[1], b.files[0])},
		"a file twice":       {Rewrite: files(b.files[0], b.files[0])},
		"files and a file":   {Inode: b.files[0], Rewrite: files(b.files...)},
		"files and stripes":  {Rewrite: &wire.RewriteTask{Files: b.files, Stripes: b.stripes, End: 10}},
	} {
		if resp := b.create(job); kind(resp) != moraine.InvalidArgument.Error() {
			t.Errorf("a job with %s was answered %s", name, kind(resp))
		}
	}
	if jobs := b.ok(b.create(&wire.Job{Rewrite: files(b.files[3] + 100)})).GetJobs().GetJobs(); len(jobs) != 0 {
		t.Errorf("a job for a file that is not there is %v", jobs)
	}
	other := b.small("other", 10)
	b.registerHost("n8", 3) // devices 8, 9 and 10 are on one host
	b.begin()
	for name, tt := range map[string]struct {
		change func(op *wire.CommitRewrite)
		want   moraine.Kind
	}{
		"is of no files":              {func(op *wire.CommitRewrite) { op.Files = nil }, moraine.InvalidArgument},
		"is of another file":          {func(op *wire.CommitRewrite) { op.Files[3].Inode = other }, moraine.InvalidArgument},
		"is of a file twice":          {func(op *wire.CommitRewrite) { op.Files[1] = op.Files[0] }, moraine.InvalidArgument},
		"is out of order":             {func(op *wire.CommitRewrite) { slices.Reverse(op.Files) }, moraine.InvalidArgument},
		"takes nothing away":          {func(op *wire.CommitRewrite) { first(op).Was = nil }, moraine.InvalidArgument},
		"brings nothing for a file":   {func(op *wire.CommitRewrite) { first(op).Extents, first(op).Was = nil, nil }, moraine.InvalidArgument},
		"takes more away":             {func(op *wire.CommitRewrite) { first(op).Was[0].Length++ }, moraine.InvalidArgument},
		"takes less away":             {func(op *wire.CommitRewrite) { first(op).Was[0].Length-- }, moraine.InvalidArgument},
		"reaches past its stripe":     {func(op *wire.CommitRewrite) { op.Files[3].Extents[0].StripeOffset++ }, moraine.InvalidArgument},
		"has a byte for many":         {func(op *wire.CommitRewrite) { op.Stripes[0].Length = 40; zeroOffsets(op) }, moraine.InvalidArgument},
		"names a stripe it has not":   {func(op *wire.CommitRewrite) { first(op).Extents[0].Stripe = b.stripes[0] }, moraine.InvalidArgument},
		"has no stripe":               {func(op *wire.CommitRewrite) { op.Stripes = nil }, moraine.InvalidArgument},
		"has two stripes":             {func(op *wire.CommitRewrite) { op.Stripes = append(op.Stripes, stripe(b.fresh+1, 10, 1, 2, 3)) }, moraine.InvalidArgument},
		"is of another lease":         {func(op *wire.CommitRewrite) { op.LeaseEpoch++ }, moraine.Fenced},
		"is of a stripe in memory":    {func(op *wire.CommitRewrite) { op.Stripes[0].Chunks[1].Level = uint32(moraine.Memory) }, moraine.InvalidArgument},
		"has a stripe of no grant":    {func(op *wire.CommitRewrite) { restripe(op, b.fresh+1) }, moraine.Stale},
		"has more than is bounded":    {func(op *wire.CommitRewrite) { first(op).Was = slices.Repeat(first(op).Was, 257) }, moraine.TooLarge},
		"has fewer copies":            {func(op *wire.CommitRewrite) { op.Stripes[0] = stripe(b.fresh, 100, 2, 3) }, moraine.Conflict},
		"has chunks on too few hosts": {func(op *wire.CommitRewrite) { op.Stripes[0] = stripe(b.fresh, 100, 1, 2, 3, 8, 9, 10) }, moraine.Conflict},
		"reads elsewhere": {func(op *wire.CommitRewrite) {
			for _, f := range op.Files {
				f.Was[0].StripeOffset++
			}
		}, moraine.Stale},
	} {
		op := b.op()
		tt.change(op)
		if resp := b.commit(op); kind(resp) != tt.want.Error() {
			t.Errorf("a commit that %s was answered %s, want %v", name, kind(resp), tt.want)
		}
		if have := b.packed(); have != "0000" || b.stripe(b.fresh) != nil {
			t.Fatalf("%s: packed are %s", name, have)
		}
		b.check()
	}
	// A job for one file permits no others.
	op := b.op()
	b.ok(b.finish(""))
	b.ok(b.create(&wire.Job{Inode: b.files[0], Rewrite: &wire.RewriteTask{End: 10, Stripes: b.stripes[:1]}}))
	b.lease("n2")
	op.Job, op.LeaseEpoch = b.job.Id, b.job.LeaseEpoch
	b.wants(b.commit(op), moraine.InvalidArgument)
	b.check()
}

// zeroOffsets makes all files refer to the first bytes of the stripe.
func zeroOffsets(op *wire.CommitRewrite) {
	for _, f := range op.Files {
		f.Extents[0].StripeOffset = 0
	}
}

// restripe gives the stripe another number.
func restripe(op *wire.CommitRewrite, id uint64) {
	op.Stripes[0].Id = id
	for _, f := range op.Files {
		f.Extents[0].Stripe = id
	}
}
