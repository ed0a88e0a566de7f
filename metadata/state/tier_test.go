package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/names"
	"github.com/morainefs/moraine/transport/wire"
)

const onCommit = wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT

func (y *tier) setPolicy(dir uint64, p *wire.Policy) *wire.MetaResponse {
	y.t.Helper()
	return y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: dir, Policy: p}}})
}

func (y *tier) rename(parent uint64, name string, newParent uint64, newName string) {
	y.t.Helper()
	y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: parent, Name: name, NewParent: newParent, NewName: newName}}}))
}

// A policy applies below its directory, field by field, down to the next policy that sets the
// field.
func TestPolicyIsInherited(t *testing.T) {
	y := newTier(t)
	a := y.c.mkdir(y.c.root, "a")
	b := y.c.mkdir(a, "b")
	f := y.c.mkfile(b, "f")
	read := func(i uint64) string {
		r := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: i}}})).GetPolicy()
		word := func(p *wire.Policy) string {
			return strings.ToLower(strings.TrimPrefix(p.GetFlush().String(), "FLUSH_POLICY_")) + fmt.Sprintf(" %d+%d", p.GetScheme().GetK(), p.GetScheme().GetM())
		}
		return word(r.Own) + ", " + word(r.Effective)
	}
	want := func(i uint64, want string) {
		t.Helper()
		if have := read(i); have != want {
			t.Errorf("policy is %s, want %s", have, want)
		}
	}
	want(f, "unspecified 0+0, never 0+0")
	y.ok(y.setPolicy(a, &wire.Policy{Flush: onCommit, Scheme: &wire.Scheme{K: 4, M: 2}}))
	want(f, "unspecified 0+0, on_commit 4+2")
	y.ok(y.setPolicy(b, &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_NEVER}))
	want(b, "never 0+0, never 4+2")
	want(f, "unspecified 0+0, never 4+2")
	if s, err := names.PolicyScheme(y.m.View(y.kv), moraine.InodeID(f)); err != nil || s != (moraine.Scheme{K: 4, M: 2}) {
		t.Errorf("new stripes of the file are to be %v, %v", s, err)
	}
	y.check()
	y.ok(y.setPolicy(a, nil))
	want(b, "never 0+0, never 0+0")
	for what, r := range map[string]*wire.MetaResponse{
		"a file":   y.setPolicy(f, &wire.Policy{}),
		"a flush":  y.setPolicy(a, &wire.Policy{Flush: 99}),
		"a scheme": y.setPolicy(a, &wire.Policy{Scheme: &wire.Scheme{K: 200, M: 200}}),
	} {
		if r.GetError() == nil {
			t.Errorf("%s was taken", what)
		}
	}
	y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: y.c.root, Name: "a"}}}))
	y.runTrees()
	y.check()
}

// Under flush-on-commit, any request that changes a file or moves one there queues a flush of the
// newest generation. Files elsewhere are not flushed.
func TestFlushOnCommit(t *testing.T) {
	y := newTier(t)
	d, out := y.c.mkdir(y.c.root, "d"), y.c.mkdir(y.c.root, "out")
	never := y.c.mkdir(d, "never")
	y.ok(y.setPolicy(d, &wire.Policy{Flush: onCommit}))
	y.ok(y.setPolicy(never, &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_NEVER}))
	clean := func(what string, f uint64, want bool) {
		t.Helper()
		y.drain()
		y.sound(f)
		if a := y.c.attr(f); a.Clean != want {
			t.Errorf("%s: clean is %t", what, a.Clean)
		}
	}
	f := y.c.mkfile(d, "f")
	y.write(f, 10)
	clean("commit", f, true)
	y.write(f, 10)
	clean("commit again", f, true)
	y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetAttr{SetAttr: &wire.SetAttr{Inode: f, Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: 3}}}))
	clean("truncate", f, true)
	g := y.c.mkfile(d, "g")
	y.ok(y.c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: f}}}))
	clean("clone", g, true)
	h := y.c.mkfile(out, "h")
	y.write(h, 10)
	clean("commit elsewhere", h, false)
	y.rename(out, "h", d, "h")
	clean("rename", h, true)
	sub := y.c.mkdir(out, "sub")
	k := y.c.mkfile(sub, "k")
	y.write(k, 10)
	y.rename(out, "sub", d, "sub")
	clean("rename of a directory", k, true)
	n := y.c.mkfile(never, "n")
	y.write(n, 10)
	clean("commit where it is never", n, false)
	u := y.ok(y.c.create(&wire.Create{Parent: d, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr().GetInode()
	y.write(u, 10)
	if s := y.status(); s.QueuedFlushes != 0 {
		t.Errorf("a file without a name: %v", s)
	}
	s := y.c.grant(u, 1)
	y.ok(y.c.commit(&wire.Commit{Inode: u, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{stripe(s, 4, 1, 2, 3)},
		Extents: []*wire.Extent{extent(0, 4, s, 0)}, Link: &wire.LinkTarget{Parent: d, Name: "u"}}))
	clean("link by the last commit", u, true)
	if *rewriteLogs {
		y.writeLog("v1-flush-on-commit")
	}
}

// A commit during a flush queues another flush.
func TestTheNewestGenerationIsFlushed(t *testing.T) {
	y := newTier(t)
	y.ok(y.setPolicy(y.c.root, &wire.Policy{Flush: onCommit}))
	f := y.c.mkfile(y.c.root, "f")
	for at := range 12 { // the flush is stopped at each of its operations, the file changes
		y.write(f, 10)
		y.crash = &crash{at: at, how: "before"}
		y.mover("n1").work()
		y.crash = nil
		y.write(f, 10)
		y.wait(16)
		y.drain()
		y.sound(f)
		if a := y.c.attr(f); !a.Clean {
			t.Fatalf("stopped at operation %d: %v", at, a)
		}
	}
}

// The same if the flush failed and will be retried: its completed object is recorded first and has
// the older content.
func TestTheNewestGenerationIsFlushedAfterAFailure(t *testing.T) {
	y := newTier(t)
	f := y.c.mkfile(y.c.root, "f")
	for at := range 12 {
		y.write(f, 10)
		j := y.queue(flushJob, f)[0]
		y.crash = &crash{at: at, how: "after"}
		y.mover("n1").work()
		y.crash = nil
		y.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
			Id: j.Id, LeaseEpoch: 1, Error: "the bucket is away"}}})
		y.write(f, 10)
		y.queue(flushJob, f)
		y.drain()
		y.sound(f)
		if a := y.c.attr(f); !a.Clean {
			t.Fatalf("failed after operation %d: %v", at, a)
		}
	}
}

// A canceled flush leaves nothing behind, at whatever point it was, and its holder stops.
func TestCancelLeavesNoUpload(t *testing.T) {
	for at := 0; ; at++ {
		y := newTier(t)
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		j := y.queue(flushJob, f)[0]
		y.crash = &crash{at: at, how: "after"}
		first := y.mover("n1")
		first.work()
		hit := y.crash.hit
		if y.crash = nil; hit == "" {
			break
		}
		y.ok(y.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
		y.check()
		if req := first.pending; req != nil && req.GetFinishJob() == nil {
			if k := kind(y.as("n1", "chunkserver", req)); k != "fenced" {
				t.Errorf("after %q the holder's next request was answered %s", hit, k)
			}
		}
		y.wait(20)
		y.drain()
		y.sound(f)
		got := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: j.Id}}})).GetJobs().GetJobs()[0].State
		if want := wire.JobState_JOB_STATE_CANCELED; got != want && hit != "finish" {
			t.Errorf("after %q the job is %s", hit, got)
		}
	}
}

// A flush requested after another was canceled is done, although the canceled one must still settle
// what it began, at whatever point it was.
func TestFlushAfterACancel(t *testing.T) {
	for at := 0; ; at++ {
		y := newTier(t)
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		j := y.queue(flushJob, f)[0]
		y.crash = &crash{at: at, how: "after"}
		y.mover("n1").work()
		hit := y.crash.hit
		if y.crash = nil; hit == "" {
			break
		}
		y.ok(y.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
		if again := y.queue(flushJob, f)[0]; again.Id == j.Id {
			t.Errorf("after %q the canceled job was answered", hit)
		}
		y.check()
		y.wait(20)
		y.drain()
		y.sound(f)
		if a := y.c.attr(f); !a.Clean {
			t.Errorf("after %q: %v", hit, a)
		}
	}
}

// A canceled flush completed its upload but settles it after the file got another name, other
// content and an object of that content. The newer object stays.
func TestLateSettledUploadIsNotTheNewest(t *testing.T) {
	for at := 0; ; at++ {
		y := newTier(t)
		f := y.c.mkfile(y.c.root, "f")
		y.write(f, 10)
		j := y.queue(flushJob, f)[0]
		y.crash = &crash{at: at, how: "after"}
		y.mover("n1").work()
		hit := y.crash.hit
		if y.crash = nil; hit == "" {
			break
		}
		y.ok(y.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
		y.rename(y.c.root, "f", y.c.root, "g")
		y.write(f, 10)
		y.queue(flushJob, f)
		y.mover("n2").work() // the canceled job waits for the end of its lease
		y.check()
		if a := y.c.attr(f); !a.Clean {
			t.Fatalf("after %q: the later flush left %v", hit, a)
		}
		y.wait(20)
		y.drain()
		y.sound(f)
		if a := y.c.attr(f); !a.Clean {
			t.Errorf("after %q: %v", hit, a)
		}
		if n := y.status().Objects; n != 1 && hit != "finish" && hit != "commit" {
			t.Errorf("after %q: %d objects are left", hit, n)
		}
	}
}

// The job of a directory ends although a file below has two names there.
func TestTreeWithTwoNamesOfAFile(t *testing.T) {
	y := newTier(t)
	dir := y.c.mkdir(y.c.root, "d")
	f := y.c.mkfile(dir, "f")
	y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: f, Parent: dir, Name: "g"}}}))
	y.write(f, 10)
	j := y.queue(flushJob, dir)[0]
	y.runTrees()
	y.drain()
	tree := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: j.Id}}})).GetJobs().GetJobs()[0]
	if tree.State != wire.JobState_JOB_STATE_DONE || tree.Total != 1 || !y.c.attr(f).Clean {
		t.Errorf("the tree's job is %v", tree)
	}
}

// The deletion of an object cannot be canceled, because nobody would request it again.
func TestDeletionsAreNotCanceled(t *testing.T) {
	y := newTier(t)
	f := y.c.mkfile(y.c.root, "f")
	y.write(f, 10)
	y.queue(flushJob, f)
	y.drain()
	y.unlink("f")
	jobs := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})).GetJobs().GetJobs()
	if len(jobs) != 1 || jobs[0].Kind != wire.JobKind_JOB_KIND_DELETE_OBJECT {
		t.Fatalf("the jobs are %v", jobs)
	}
	if k := kind(y.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: jobs[0].Id}}})); k != "invalid argument" {
		t.Errorf("to cancel it was answered %s", k)
	}
}

// A move of a file is queued once. If there is nothing to move the request succeeds at once; if the
// move is impossible it fails with the reason.
func TestQueueMove(t *testing.T) {
	y := newTier(t)
	f, dir := y.c.mkfile(y.c.root, "f"), y.c.mkdir(y.c.root, "d")
	y.write(f, 10)
	first, again := y.queue(flushJob, f)[0], y.queue(flushJob, f)[0]
	if first.Id == 0 || first.Id != again.Id || first.Inode != f || first.Subject != "f" {
		t.Errorf("queued %v and %v", first, again)
	}
	if j := y.queue(evictJob, f)[0]; j.Id != 0 || j.State != wire.JobState_JOB_STATE_FAILED || j.Error == "" {
		t.Errorf("eviction of a dirty file: %v", j)
	}
	y.drain()
	if j := y.queue(flushJob, f)[0]; j.Id != 0 || j.State != wire.JobState_JOB_STATE_DONE {
		t.Errorf("flush of a clean file: %v", j)
	}
	j := y.queue(evictJob, dir, f)
	y.runTrees()
	y.drain()
	tree := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: j[0].Id}}})).GetJobs().GetJobs()[0]
	if tree.State != wire.JobState_JOB_STATE_DONE || tree.Moves != evictJob || tree.Subject != "d" {
		t.Errorf("the tree's job is %v", tree)
	}
	for what, op := range map[string]*wire.QueueMove{
		"no kind":       {Kind: wire.JobKind_JOB_KIND_REPAIR, Inodes: []uint64{f}},
		"no such inode": {Kind: flushJob, Inodes: []uint64{12345}},
		"too many":      {Kind: flushJob, Inodes: make([]uint64, 257)},
	} {
		if r := y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: op}}); r.GetError() == nil {
			t.Errorf("%s was queued", what)
		}
	}
}

// A flush of a directory, by command or by policy, skips the parts of incomplete uploads.
func TestPartsOfUploadsAreNotFlushed(t *testing.T) {
	y := newTier(t)
	bucket := y.c.mkdir(y.c.root, "bucket")
	y.ok(y.setPolicy(bucket, &wire.Policy{Flush: onCommit}))
	upload := y.c.mkdir(y.c.mkdir(bucket, moraine.UploadsDir), "id")
	part, whole := y.c.mkfile(upload, "00001"), y.c.mkfile(bucket, "file")
	y.write(part, 10)
	y.write(whole, 10)
	y.queue(flushJob, bucket)
	y.runTrees()
	y.drain()
	if p, w := y.c.attr(part), y.c.attr(whole); p.Clean || !w.Clean {
		t.Errorf("flushed: the part %v, the file %v", p.Clean, w.Clean)
	}
	y.rename(upload, "00001", bucket, "part")
	y.drain()
	if !y.c.attr(part).Clean {
		t.Error("it is a file of the bucket now")
	}
}

// A flush or a stage of a directory skips its snapshots and its trash. A file of such a name is like
// any other.
func TestJobsOfATreeSkipSnapshotsAndTrash(t *testing.T) {
	y := newTier(t)
	top := y.c.mkdir(y.c.root, "top")
	files := map[uint64]bool{}
	for _, name := range []string{moraine.SnapshotsDir, moraine.TrashDir} {
		files[y.c.mkfile(y.c.mkdir(top, name), "file")] = false
		files[y.c.mkfile(y.c.mkdir(top, "of"+name), name)] = true
	}
	for f := range files {
		y.write(f, 10)
	}
	move := func(kind wire.JobKind, inodes ...uint64) {
		y.queue(kind, inodes...)
		y.runTrees()
		y.drain()
	}
	move(flushJob, top)
	for f, moved := range files {
		if got := y.c.attr(f).Clean; got != moved {
			t.Errorf("file %d is flushed: %t, want %t", f, got, moved)
		}
	}
	for f := range files {
		move(flushJob, f)
		move(evictJob, f)
	}
	move(stageJob, top)
	for f, moved := range files {
		if got := !y.c.attr(f).Evicted; got != moved {
			t.Errorf("file %d is staged: %t, want %t (%s)", f, got, moved, y.state(f))
		}
	}
}

// The job of a tree ends when all jobs that it queued have ended, and reports the failed ones.
func TestTreeJobWaitsForItsFiles(t *testing.T) {
	y := newTier(t)
	d := y.c.mkdir(y.c.root, "d")
	for n := range 20 {
		y.write(y.c.mkfile(d, fmt.Sprint("f", n)), 10)
	}
	id := y.queue(flushJob, d)[0].Id
	get := func() *wire.Job {
		return y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: id}}})).GetJobs().GetJobs()[0]
	}
	y.runTrees()
	mv := y.mover("n1")
	for n := range 19 {
		if !mv.work() {
			t.Fatal("no work")
		}
		if j := get(); j.State != wire.JobState_JOB_STATE_RUNNING || j.Total != 20 || j.Done != uint64(n+1) {
			t.Fatalf("after %d files: %v", n+1, j)
		}
	}
	j := y.leaseAs("n1", 1)[0]
	y.ok(y.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch, Error: "no", Final: true}}}))
	if j := get(); j.State != wire.JobState_JOB_STATE_FAILED || !strings.Contains(j.Error, "no") {
		t.Errorf("the tree's job is %v", j)
	}
	y.check()
}

// An evicted file reads from its object. A write to it adds stripes over the object, and staging
// restores only the ranges still in the object.
func TestEvictedFile(t *testing.T) {
	y := newTier(t)
	f := y.c.mkfile(y.c.root, "f")
	y.write(f, 100)
	y.queue(flushJob, f)
	y.drain()
	y.queue(evictJob, f)
	y.drain()
	a := y.c.attr(f)
	ex := y.ok(y.c.extents(f, 0, 0)).GetExtents()
	if !a.Evicted || !a.Clean || len(ex.Extents) != 1 || ex.Extents[0].Object != a.Object || ex.Extents[0].Length != 100 || len(ex.Objects) != 1 {
		t.Fatalf("evicted: %v %v", a, ex)
	}
	g := y.c.grant(f, 1)
	y.ok(y.c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Level: 3, Stripes: []*wire.Stripe{stripe(g, 10, 1, 2, 3)},
		Extents: []*wire.Extent{extent(40, 10, g, 0)}}))
	a = y.c.attr(f)
	if a.Clean || !a.Evicted || a.Level != uint32(moraine.NVMe) || a.Stored != 100 {
		t.Errorf("written over: %v", a)
	}
	y.check()
	if r := y.queue(evictJob, f)[0]; r.State != wire.JobState_JOB_STATE_FAILED {
		t.Errorf("eviction of a dirty file: %v", r)
	}
	y.queue(stageJob, f)
	y.drain()
	if a = y.c.attr(f); a.Evicted || a.Clean || a.Generation != y.c.attr(f).Generation {
		t.Errorf("staged: %v", a)
	}
	y.sound(f)
	y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: y.c.root, Name: "f"}}}))
	y.drain()
	if len(y.s.objects) != 0 {
		t.Errorf("the store still has %v", y.s.objects)
	}
	if *rewriteLogs {
		y.writeLog("v1-evicted-file")
	}
}

// The state verifies a mover's request against the announced intent and the job lease.
func TestMoverRequestsAreChecked(t *testing.T) {
	y := newTier(t)
	f, g := y.c.mkfile(y.c.root, "f"), y.c.mkfile(y.c.root, "g")
	y.write(f, 10)
	y.write(g, 10)
	y.queue(flushJob, f, g)
	jobs := y.leaseAs("n1", 2)
	j, other := jobs[0], jobs[1]
	gen := j.Move.Attr.Generation
	in := func() *wire.ObjectIntent {
		return &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Bucket: "b", Key: j.Move.Key, Generation: gen}
	}
	want := func(what, want string, node string, req *wire.MetaRequest) {
		t.Helper()
		if have := kind(y.as(node, "chunkserver", req)); have != want {
			t.Errorf("%s: %s, want %s", what, have, want)
		}
	}
	object := func() *wire.Object {
		return &wire.Object{Bucket: "b", Key: j.Move.Key, Etag: "e", Size: 10, Crc: 7, Generation: gen, Piece: 4, Verified: wire.Verified_VERIFIED_STORE_CRC}
	}
	want("another's lease", "permission denied", "n2", begin(j, in()))
	stale := in()
	stale.Generation++
	want("another generation", "stale", "n1", begin(j, stale))
	want("nothing announced", "conflict", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: object()}))
	want("announced", "ok", "n1", begin(j, in()))
	want("announced again", "ok", "n1", begin(j, in()))
	clash := in()
	clash.Generation = other.Move.Attr.Generation
	want("a key that another job changes", "conflict", "n1", begin(other, clash))
	with := in()
	with.UploadId = "u1"
	want("its number", "ok", "n1", begin(j, with))
	with.UploadId = "u2"
	want("another number", "conflict", "n1", begin(j, with))
	want("not completing", "conflict", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: object(), Sums: make([]uint32, 3)}))
	with.UploadId, with.Completing, with.Etag, with.Size, with.Crc = "u1", true, "e", 10, 7
	want("completing", "ok", "n1", begin(j, with))
	wrong := object()
	wrong.Size++
	want("another size", "conflict", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: wrong, Sums: make([]uint32, 3)}))
	unverified := object()
	unverified.Verified = 0
	want("not compared with the file's bytes", "invalid argument", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: unverified, Sums: make([]uint32, 3)}))
	want("sums that begin in a block", "invalid argument", "n1", commitFlush(j, &wire.CommitFlush{FirstSum: 1, Sums: make([]uint32, 3)}))
	want("too few sums", "invalid argument", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: object(), Sums: make([]uint32, 2)}))
	want("finished before it is settled", "conflict", "n1", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}})
	want("recorded", "ok", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: object(), Sums: []uint32{1, 2, 3}}))
	want("recorded again", "ok", "n1", commitFlush(j, &wire.CommitFlush{Final: true, Object: object(), Sums: []uint32{1, 2, 3}}))
	want("finished", "ok", "n1", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}})
	a := y.c.attr(j.Inode)
	r := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{Object: a.Object, FirstSum: 1, Sums: 9}}})).GetObject()
	if fmt.Sprint(r.Sums) != "[2 3]" || r.Object.RefCount != 1 || !a.Clean {
		t.Errorf("recorded %v with sums %v, the file is %v", r.Object, r.Sums, a)
	}
	y.check()
}

// A checkpoint committed under flush-on-commit is flushed as a tree. Its parts are not flushed
// earlier, while nobody sees them.
func TestCommittedCheckpointIsFlushed(t *testing.T) {
	s := &ckptScript{bench: newCluster(t, 6), sessions: map[string]*client{}}
	y := &tier{bench: s.bench, s: &bucket{objects: map[string]string{}, uploads: map[string]upload{}}, c: s.session("a")}
	y.ok(y.setPolicy(y.c.root, &wire.Policy{Flush: onCommit}))
	for _, line := range checkpoint[:8] {
		who, rest, _ := strings.Cut(line, " ")
		s.run(who, words(rest))
	}
	if st := y.status(); st.QueuedFlushes != 0 {
		t.Errorf("before the commit: %v", st)
	}
	for _, line := range checkpoint[8:] {
		who, rest, _ := strings.Cut(line, " ")
		s.run(who, words(rest))
	}
	y.drain()
	w := y.c.walk("/r/attempt-1/step-1").GetWalk()
	if !w.GetFound() {
		w = y.c.walk("/r/latest").GetWalk()
	}
	files := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: w.GetAttr().GetInode()}}})).GetReadDir().GetEntries()
	if len(files) < 2 {
		t.Fatalf("the step has %v", files)
	}
	for _, e := range files {
		if !e.Attr.Clean {
			t.Errorf("%s is not clean: %v", e.Name, e.Attr)
		}
		y.sound(e.Attr.Inode)
	}
}
