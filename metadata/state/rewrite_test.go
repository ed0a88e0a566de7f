package state_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const rewriteJob = wire.JobKind_JOB_KIND_REWRITE

// rewriting is a file of 300 bytes in three stripes. The fourth overwrites the middle of the second
// stripe and half of the first.
type rewriting struct {
	*moving
	f       uint64
	stripes [4]uint64
}

// moving is a cluster with a mover on host n2 that rewrites stripes.
type moving struct {
	*bench
	c     *client
	job   *wire.Job
	mover *client
	fresh uint64 // the stripe that the holder of the job writes
}

func newMoving(t *testing.T, hosts int) *moving {
	b := &moving{bench: newCluster(t, hosts)}
	b.c = b.open(nil)
	return b
}

func (b *moving) create(job *wire.Job) *wire.MetaResponse {
	job.Kind = rewriteJob
	return b.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}).Response
}

// lease makes a host lease the job.
func (b *moving) lease(host string) {
	b.t.Helper()
	jobs := b.ok(b.as(host, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: host, Kinds: []wire.JobKind{rewriteJob}, Max: 1}}})).GetJobs().GetJobs()
	if len(jobs) != 1 {
		b.t.Fatalf("leased %v", jobs)
	}
	b.job = jobs[0]
}

// begin makes a job that n2 leases, and gives n2 a grant for a file.
func (b *moving) begin(job *wire.Job, file uint64) {
	b.t.Helper()
	b.ok(b.create(job))
	b.lease("n2")
	b.mover = b.open(func(op *wire.OpenSession) { op.Node, op.Role = "n2", "chunkserver" })
	b.asMover(func() { b.fresh = b.mover.grant(file, 1) })
}

// asMover runs do as the node n2.
func (b *moving) asMover(do func()) {
	old := b.node
	b.node = "n2"
	defer func() { b.node = old }()
	do()
}

func (b *moving) commit(op *wire.CommitRewrite) (resp *wire.MetaResponse) {
	b.asMover(func() { resp = b.mover.do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}}) })
	return resp
}

func (b *moving) finish(why string) *wire.MetaResponse {
	return b.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
		Id: b.job.Id, LeaseEpoch: b.job.LeaseEpoch, Error: why}}})
}

func (b *moving) stripe(id uint64) *moraine.Stripe {
	b.t.Helper()
	s, err := fleet.StripeByID(b.m.View(b.kv), moraine.StripeID(id))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// passOn ends the lease, and gives the job to another host.
func (b *moving) passOn() {
	b.t.Helper()
	mine := b.job
	for range 16 {
		b.tick(1000)
	}
	b.lease("n3")
	b.job = mine
}

func (b *moving) cancel() {
	b.t.Helper()
	b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: b.job.Id}}}))
}

func (b *moving) endSession() {
	b.t.Helper()
	b.ok(b.as("n2", "chunkserver", &wire.MetaRequest{Session: b.mover.id, Number: 900, AckedBelow: 1, Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
}

func newRewriting(t *testing.T) *rewriting {
	b := &rewriting{moving: newMoving(t, 4)}
	b.f = b.c.mkfile(b.c.root, "f")
	first := b.c.grant(b.f, 4)
	op := &wire.Commit{Inode: b.f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3}
	for n := range uint64(3) {
		b.stripes[n] = first + n
		op.Stripes = append(op.Stripes, stripe(first+n, 100, 1, 2, 3))
		op.Extents = append(op.Extents, extent(100*n, 100, first+n, 0))
	}
	b.ok(b.c.commit(op))
	b.stripes[3] = first + 3
	b.ok(b.c.commit(&wire.Commit{Inode: b.f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3,
		Stripes: []*wire.Stripe{stripe(first+3, 130, 1, 2, 3)},
		Extents: []*wire.Extent{extent(50, 50, first+3, 0), extent(110, 80, first+3, 50)}}))
	b.check()
	return b
}

// named is what the file refers to in its stripes, inspected a few extents at a time.
func (b *rewriting) named(limit int) map[moraine.StripeID]content.Named {
	b.t.Helper()
	named := map[moraine.StripeID]content.Named{}
	for from := int64(0); from >= 0; {
		var err error
		if _, from, err = content.NameStripes(b.m.View(b.kv), moraine.InodeID(b.f), from, limit, named); err != nil {
			b.t.Fatal(err)
		}
	}
	return named
}

// begin makes the job for the second stripe and lets a mover lease it.
func (b *rewriting) begin() {
	b.t.Helper()
	b.moving.begin(&wire.Job{Inode: b.f, Rewrite: &wire.RewriteTask{Offset: 100, End: 200, Stripes: b.stripes[1:2]}}, b.f)
	if j := b.job; j.Inode != b.f || !slices.Equal(j.GetRewrite().GetStripes(), b.stripes[1:2]) || j.Rewrite.End != 200 {
		b.t.Fatalf("leased %v", j)
	}
}

func (b *rewriting) op() *wire.CommitRewrite {
	return &wire.CommitRewrite{Job: b.job.Id, LeaseEpoch: b.job.LeaseEpoch,
		Stripes: []*wire.Stripe{stripe(b.fresh, 20, 2, 3, 4)},
		Files: []*wire.RewrittenFile{{Inode: b.f,
			Extents: []*wire.Extent{extent(100, 10, b.fresh, 0), extent(190, 10, b.fresh, 10)},
			Was:     []*wire.Extent{extent(100, 10, b.stripes[1], 0), extent(190, 10, b.stripes[1], 90)}}}}
}

// has is the file's layout by stripe numbers; 4 is the new one.
func (b *rewriting) has() string {
	b.t.Helper()
	out := ""
	for _, e := range b.ok(b.c.extents(b.f, 0, 0)).GetExtents().GetExtents() {
		n := slices.Index(append(b.stripes[:], b.fresh), e.Stripe)
		out += fmt.Sprintf("%d+%d:%d/%d ", e.Offset, e.Length, n, e.StripeOffset)
	}
	return out
}

func (b *rewriting) record(n int) *moraine.Stripe {
	return b.stripe(append(b.stripes[:], b.fresh)[n])
}

const (
	asItWas     = "0+50:0/0 50+50:3/0 100+10:1/0 110+80:3/50 190+10:1/90 200+100:2/0 "
	asRewritten = "0+50:0/0 50+50:3/0 100+10:4/0 110+80:3/50 190+10:4/10 200+100:2/0 "
)

// TestRewriteStripes covers the life of a rewrite; each step may be retried. The content keeps its
// generation, the sparse stripe dies, and its chunks wait for deletion.
func TestRewriteStripes(t *testing.T) {
	b := newRewriting(t)
	want := map[moraine.StripeID]content.Named{
		moraine.StripeID(b.stripes[0]): {Bytes: 50, Extents: 1, Tables: 1, From: 0, To: 50},
		moraine.StripeID(b.stripes[1]): {Bytes: 20, Extents: 2, Tables: 1, From: 100, To: 200},
		moraine.StripeID(b.stripes[2]): {Bytes: 100, Extents: 1, Tables: 1, From: 200, To: 300},
		moraine.StripeID(b.stripes[3]): {Bytes: 130, Extents: 2, Tables: 1, From: 50, To: 190},
	}
	if have := b.named(1000); fmt.Sprint(have) != fmt.Sprint(want) {
		t.Fatalf("named are %v, want %v", have, want)
	}
	if last, err := content.LastStripe(b.m.View(b.kv)); err != nil || uint64(last) != b.stripes[3] {
		t.Fatal(last, err)
	}
	b.begin()
	before := b.c.attr(b.f)
	for range 2 { // the answer was lost, and with it its number
		b.ok(b.commit(b.op()))
		if have := b.has(); have != asRewritten {
			t.Fatalf("the file has %s", have)
		}
		b.check()
	}
	after := b.c.attr(b.f)
	if after.Generation != before.Generation || after.Mtime != before.Mtime || after.Stored != before.Stored || after.Size != before.Size {
		t.Fatalf("it was %v and is %v", before, after)
	}
	if b.record(1) != nil {
		t.Fatal("the stripe that was mostly dead lives on")
	}
	if s := b.record(4); s.LiveBytes != 20 || s.RefCount != 1 {
		t.Fatalf("%+v", s)
	}
	if k, err := fleet.KeptOn(b.m.View(b.kv), 1); err != nil || k.Bytes == 0 { // a backup names the old stripe
		t.Fatalf("%d bytes are kept on device 1, %v", k.Bytes, err)
	}
	b.ok(b.finish(""))
	b.wants(b.finish(""), moraine.NotFound) // the job is forgotten at once
	b.check()
	b.keepLog("v1-rewrite")
}

// TestRewriteToFewer: the task of a job that reduces the number of stripes says so to the mover
// that leases it.
func TestRewriteToFewer(t *testing.T) {
	b := newRewriting(t)
	b.ok(b.create(&wire.Job{Inode: b.f, Rewrite: &wire.RewriteTask{Offset: 100, End: 200, Stripes: b.stripes[1:2], Fewer: 4}}))
	b.lease("n2")
	if b.job.Rewrite.Fewer != 4 {
		t.Fatalf("leased %v", b.job)
	}
	b.ok(b.finish(""))
	b.check()
	b.keepLog("v1-rewrite-fewer")
}

// TestRewriteGivesWay covers each change by others between the mover's look at the file and its
// commit. A reader gets the others' bytes, whether the commit is refused or unaffected.
func TestRewriteGivesWay(t *testing.T) {
	write := func(b *rewriting, off, n uint64) {
		id := b.c.grant(b.f, 1)
		b.ok(b.c.commit(&wire.Commit{Inode: b.f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3,
			Stripes: []*wire.Stripe{stripe(id, n, 1, 2, 3)}, Extents: []*wire.Extent{extent(off, n, id, 0)}}))
	}
	for name, tt := range map[string]struct {
		do      func(b *rewriting)
		refused moraine.Kind
	}{
		"a byte of it is overwritten": {func(b *rewriting) { write(b, 195, 1) }, moraine.Stale},
		"all of it is overwritten":    {func(b *rewriting) { write(b, 100, 100) }, moraine.Stale},
		"it is cut off": {func(b *rewriting) {
			b.ok(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: b.f, Size: 195,
				Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE)}}}))
		}, moraine.Stale},
		"it is cloned": {func(b *rewriting) {
			g := b.c.mkfile(b.c.root, "g")
			b.ok(b.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: b.f}}}))
		}, moraine.Stale},
		"a part of it is cloned": {func(b *rewriting) { // the clone has a table of its own: the stripe lives on
			g := b.c.mkfile(b.c.root, "g")
			b.ok(b.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: b.f, Offset: 95, Length: 10}}}))
		}, 0},
		"the file is removed": {func(b *rewriting) {
			b.ok(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: b.c.root, Name: "f"}}}))
		}, moraine.NotFound},
		"another part is overwritten":              {func(b *rewriting) { write(b, 120, 30) }, 0},
		"it is appended to":                        {func(b *rewriting) { write(b, 300, 30) }, 0},
		"the lease ended, and another has the job": {func(b *rewriting) { b.passOn() }, moraine.Fenced},
		"the job is canceled":                      {func(b *rewriting) { b.cancel() }, moraine.Fenced},
		"the job has failed":                       {func(b *rewriting) { b.ok(b.finish("no room")) }, moraine.Fenced},
		"the mover's session has ended":            {func(b *rewriting) { b.endSession() }, moraine.SessionExpired},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRewriting(t)
			b.begin()
			tt.do(b)
			b.check()
			if tt.refused == 0 {
				b.ok(b.commit(b.op()))
				if s := b.record(4); s == nil || s.RefCount == 0 {
					t.Fatalf("the new stripe is %+v", s)
				}
				b.check()
				return
			}
			before := b.describeFile()
			b.wants(b.commit(b.op()), tt.refused)
			if after := b.describeFile(); after != before {
				t.Fatalf("a commit that was refused made of %s\n%s", before, after)
			}
			if b.record(4) != nil {
				t.Fatal("the stripe of a commit that was refused lives")
			}
			b.check()
		})
	}
}

// describeFile is the file's layout; empty if the file is gone.
func (b *rewriting) describeFile() string {
	resp := b.c.extents(b.f, 0, 0)
	if resp.GetError() != nil {
		return ""
	}
	return b.has()
}

// first is the first file of a commit.
func first(op *wire.CommitRewrite) *wire.RewrittenFile { return op.Files[0] }

// TestRewriteRefuses: a commit that does not state exactly what it replaces changes nothing.
func TestRewriteRefuses(t *testing.T) {
	b := newRewriting(t)
	for name, task := range map[string]*wire.RewriteTask{
		"no stripes":       {End: 10},
		"an empty range":   {Offset: 10, End: 10, Stripes: b.stripes[1:2]},
		"too many stripes": {End: 10, Stripes: make([]uint64, content.MaxRewriteStripes+1)},
		"no task":          nil,
		"too few to be":    {End: 10, Stripes: b.stripes[1:2], Fewer: content.MaxRewriteStripes + 1},
	} {
		if resp := b.create(&wire.Job{Inode: b.f, Rewrite: task}); kind(resp) != moraine.InvalidArgument.Error() {
			t.Errorf("a job with %s was answered %s", name, kind(resp))
		}
	}
	b.registerHost("n5", 2) // device 5 is on the host of device 6
	b.begin()
	for name, tt := range map[string]struct {
		change func(op *wire.CommitRewrite)
		want   moraine.Kind
	}{
		"takes nothing away":       {func(op *wire.CommitRewrite) { first(op).Was = nil }, moraine.InvalidArgument},
		"takes too little away":    {func(op *wire.CommitRewrite) { first(op).Was = first(op).Was[:1] }, moraine.InvalidArgument},
		"takes more away":          {func(op *wire.CommitRewrite) { first(op).Was[1].Length++ }, moraine.InvalidArgument},
		"takes a hole away":        {func(op *wire.CommitRewrite) { first(op).Was[1].Stripe = 0 }, moraine.InvalidArgument},
		"takes away out of order":  {func(op *wire.CommitRewrite) { slices.Reverse(first(op).Was) }, moraine.InvalidArgument},
		"brings nothing":           {func(op *wire.CommitRewrite) { op.Stripes, first(op).Extents, first(op).Was = nil, nil, nil }, moraine.InvalidArgument},
		"reads elsewhere":          {func(op *wire.CommitRewrite) { first(op).Was[1].StripeOffset-- }, moraine.Stale},
		"reads another stripe":     {func(op *wire.CommitRewrite) { first(op).Was[1].Stripe = b.stripes[3] }, moraine.Stale},
		"is for another file":      {func(op *wire.CommitRewrite) { first(op).Inode = b.c.mkfile(b.c.root, "other") }, moraine.InvalidArgument},
		"is of another lease":      {func(op *wire.CommitRewrite) { op.LeaseEpoch++ }, moraine.Fenced},
		"is of a stripe in memory": {func(op *wire.CommitRewrite) { op.Stripes[0].Chunks[1].Level = uint32(moraine.Memory) }, moraine.InvalidArgument},
		"has a stripe of no grant": {func(op *wire.CommitRewrite) {
			op.Stripes[0].Id++
			first(op).Extents[0].Stripe++
			first(op).Extents[1].Stripe++
		}, moraine.Stale},
		"has more than is bounded":  {func(op *wire.CommitRewrite) { first(op).Was = slices.Repeat(first(op).Was, 129) }, moraine.TooLarge},
		"has fewer copies":          {func(op *wire.CommitRewrite) { op.Stripes = []*wire.Stripe{stripe(b.fresh, 20, 2, 3)} }, moraine.Conflict},
		"has copies on one host":    {func(op *wire.CommitRewrite) { op.Stripes = []*wire.Stripe{stripe(b.fresh, 20, 2, 5, 6)} }, moraine.Conflict},
		"names a stripe it has not": {func(op *wire.CommitRewrite) { first(op).Extents[1].Stripe = b.stripes[0] }, moraine.InvalidArgument},
	} {
		op := b.op()
		tt.change(op)
		if resp := b.commit(op); kind(resp) != tt.want.Error() {
			t.Errorf("a commit that %s was answered %s, want %v", name, kind(resp), tt.want)
		}
		if have := b.has(); have != asItWas {
			t.Fatalf("%s: the file has %s", name, have)
		}
		b.check()
	}
}

// TestNamedStripes: tables that a clone shares are not counted; the reference count reveals a
// stripe that another file uses. A stripe that many tables refer to is counted whole, however few
// extents one turn inspects.
func TestNamedStripes(t *testing.T) {
	b := newRewriting(t)
	told := func() (told, others int) {
		for id, n := range b.named(1) {
			s, err := fleet.StripeByID(b.m.View(b.kv), id)
			if err != nil || s == nil {
				t.Fatal(s, err)
			}
			if n.Bytes > s.LiveBytes {
				t.Fatalf("%d bytes are named of %s, which has %d", n.Bytes, id, s.LiveBytes)
			}
			if s.RefCount == n.Tables {
				told++
			} else {
				others++
			}
		}
		return told, others
	}
	wants := func(what string, told0, others0 int) {
		t.Helper()
		if a, o := told(); a != told0 || o != others0 {
			t.Fatalf("%s: of %d stripes all references are known and of %d not, want %d and %d", what, a, o, told0, others0)
		}
	}
	wants("one file", 4, 0)
	g := b.c.mkfile(b.c.root, "g")
	b.ok(b.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: b.f, Offset: 0, Length: 40}}}))
	wants("a cut of the first stripe is a clone's", 3, 1)
	b.ok(b.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: b.f}}}))
	wants("the table is a clone's too", 0, 0)
	b.ok(b.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: b.c.root, Name: "g"}}}))
	wants("the clone is gone", 4, 0)

	// A stripe for every second block of a file of many tables.
	const blocks = 1000
	all, spread := b.c.grant(b.f, blocks), b.c.grant(b.f, 1)
	for n := uint64(0); n < blocks; n += 100 {
		op := &wire.Commit{Inode: b.f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3}
		for i := n; i < n+100; i++ {
			op.Stripes = append(op.Stripes, stripe(all+i, 10, 1, 2, 3))
			op.Extents = append(op.Extents, extent(10*i, 10, all+i, 0))
		}
		b.ok(b.c.commit(op))
	}
	op := &wire.Commit{Inode: b.f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3, Stripes: []*wire.Stripe{stripe(spread, 6*5, 1, 2, 3)}}
	for n := range uint64(6) {
		op.Extents = append(op.Extents, extent(n*2000, 5, spread, 5*n))
	}
	b.ok(b.c.commit(op))
	b.check()
	n := b.named(1)[moraine.StripeID(spread)]
	s, err := fleet.StripeByID(b.m.View(b.kv), moraine.StripeID(spread))
	if err != nil || n.Bytes != 30 || n.From != 0 || n.To != 10005 || n.Tables != s.RefCount || n.Tables < 4 {
		t.Fatalf("named %+v of %+v, %v", n, s, err)
	}
	files, last, err := content.Rewritables(b.m.View(b.kv), 0, 1000)
	if err != nil || last != 0 || !slices.Equal(files, []moraine.InodeID{moraine.InodeID(b.f)}) {
		t.Fatal(files, last, err)
	}
	if _, last, err = content.Rewritables(b.m.View(b.kv), 0, 1); err != nil || last == 0 {
		t.Fatal(last, err)
	}
}
