package state_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/statepb"
	statetier "github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/transport/wire"
)

// bucket models a store: the object at each key, the started uploads, and requests that were sent
// and have not arrived.
type bucket struct {
	objects map[string]string // key -> content
	uploads map[string]upload
	late    []func()
	refuses func(key string) bool // whether a delete of the key fails; nil: never
	number  int
}

type upload struct{ key, content string }

func etag(content string) string { return fmt.Sprintf("%x", content) }

// tier is a bench with a bucket and movers that use it.
type tier struct {
	*bench
	s     *bucket
	c     *client
	crash *crash
	// meanwhile runs while a mover is dead.
	meanwhile func()
	// staged, if set, is called with the object range that was staged to a stripe.
	staged func(stripe uint64, o *wire.Object, off, n uint64)
	// stagedIn makes the stripes that objects are staged to; nil: on devices.
	stagedIn func(id, length uint64, devices ...uint32) *wire.Stripe
}

// crash stops a mover at its nth operation: before it, after it, or while the request is on its way
// to the store.
type crash struct {
	at   int
	how  string
	seen int
	hit  string // the operation
}

type stopped struct{}

// op does one operation of a mover, possibly its last.
func (y *tier) op(what string, do func()) {
	c := y.crash
	if c == nil || c.hit != "" {
		do()
		return
	}
	if c.seen++; c.seen-1 != c.at {
		do()
		return
	}
	c.hit = what
	switch c.how {
	case "before":
	case "after":
		do()
	case "late":
		// An upload that starts after the successor looked for it has no bytes; the next flush of
		// its key aborts it. No other operation may be late.
		if what != "new upload" {
			y.s.late = append(y.s.late, do)
		}
	case "twice":
		do()
		do()
		return
	}
	panic(stopped{})
}

func newTier(t testing.TB) *tier { return newTierOf(t, 3) }

// newTierOf is a tier of so many hosts.
func newTierOf(t testing.TB, hosts int) *tier {
	b := newCluster(t, hosts)
	b.settle = 60_000
	return &tier{bench: b, s: &bucket{objects: map[string]string{}, uploads: map[string]upload{}}, c: b.open(nil)}
}

// miniMover does what a mover does, with nothing but the state machine's rules.
type miniMover struct {
	*tier
	node string
	sess *client
	// pending is the first request to the state after a crash: a mover that only seemed dead sends
	// it.
	pending *wire.MetaRequest
}

func (y *tier) mover(node string) *miniMover { return &miniMover{tier: y, node: node} }

func (mv *miniMover) send(what string, req *wire.MetaRequest) (resp *wire.MetaResponse) {
	mv.pending = req
	mv.op(what, func() { resp = mv.as(mv.node, "chunkserver", req) })
	mv.pending = nil
	return resp
}

// must sends a request that cannot be refused while the job lease is valid.
func (mv *miniMover) must(what string, req *wire.MetaRequest) *wire.MetaResponse {
	mv.t.Helper()
	return mv.ok(mv.send(what, req))
}

var tierKinds = []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_STAGE, wire.JobKind_JOB_KIND_EVICT, wire.JobKind_JOB_KIND_DELETE_OBJECT}

func (y *tier) leaseAs(node string, max uint32) []*wire.Job {
	y.t.Helper()
	return y.ok(y.as(node, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: node, Kinds: tierKinds, Max: max, Bucket: "b", Prefix: "p"}}})).GetJobs().GetJobs()
}

// work leases one job and does it; false if there is none. A crash leaves the job as it is.
func (mv *miniMover) work() (worked bool) {
	jobs := mv.leaseAs(mv.node, 1)
	if len(jobs) == 0 {
		return false
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(stopped); !ok {
				panic(r)
			}
		}
	}()
	j := jobs[0]
	var err string
	switch {
	case j.Move.Intent != nil:
		mv.settleFormer(j)
	case j.Kind == wire.JobKind_JOB_KIND_FLUSH:
		err = mv.flush(j)
	case j.Kind == wire.JobKind_JOB_KIND_EVICT:
		err = mv.evict(j)
	case j.Kind == wire.JobKind_JOB_KIND_STAGE:
		err = mv.stage(j)
	default:
		err = mv.remove(j)
	}
	mv.must("finish", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch, Error: err}}})
	return true
}

func begin(j *wire.Job, in *wire.ObjectIntent) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_BeginObject{BeginObject: &wire.BeginObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intent: in}}}
}

func commitFlush(j *wire.Job, op *wire.CommitFlush) *wire.MetaRequest {
	op.Job, op.LeaseEpoch = j.Id, j.LeaseEpoch
	return &wire.MetaRequest{Op: &wire.MetaRequest_CommitFlush{CommitFlush: op}}
}

// settleFormer settles the upload that a former holder announced.
func (mv *miniMover) settleFormer(j *wire.Job) {
	in := j.Move.Intent
	content, there := mv.s.objects[in.Key]
	if in.Completing && there && etag(content) == in.Etag {
		mv.must("commit former", commitFlush(j, &wire.CommitFlush{Final: true, Object: &wire.Object{Bucket: in.Bucket, Key: in.Key, Etag: in.Etag,
			Size: in.Size, Crc: in.Crc, Generation: in.Generation, Piece: 4, Verified: wire.Verified_VERIFIED_READ_BACK}}))
		return
	}
	for _, id := range slices.Sorted(maps.Keys(mv.s.uploads)) {
		if mv.s.uploads[id].key == in.Key && (in.UploadId == "" || in.UploadId == id) {
			mv.op("abort former", func() { delete(mv.s.uploads, id) })
		}
	}
	mv.must("end former", &wire.MetaRequest{Op: &wire.MetaRequest_EndObject{EndObject: &wire.EndObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch}}})
}

func (mv *miniMover) flush(j *wire.Job) string {
	task := j.Move
	if task.KeepFirst {
		if want := fmt.Sprintf("/kept/%x/%016x", task.Cluster, task.Object.Id); !strings.HasSuffix(task.KeepKey, want) {
			panic("kept at " + task.KeepKey + ", where another cluster's object may be")
		}
		in := &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_COPY, Bucket: "b", Key: task.KeepKey, SourceKey: task.Key, Object: task.Object.Id}
		if r := mv.send("begin copy", begin(j, in)); r.GetError() != nil {
			return kind(r)
		}
		mv.op("copy", func() { mv.s.objects[task.KeepKey] = mv.s.objects[task.Key] })
		mv.must("move", &wire.MetaRequest{Op: &wire.MetaRequest_MoveObject{MoveObject: &wire.MoveObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch,
			Object: &wire.Object{Id: task.Object.Id, Bucket: "b", Key: task.KeepKey, Etag: task.Object.Etag, Verified: wire.Verified_VERIFIED_STORE_CRC}}}})
	}
	content := fmt.Sprintf("%x/%x", task.Attr.Inode, task.Attr.Generation)
	in := &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Bucket: "b", Key: task.Key, Generation: task.Attr.Generation}
	if r := mv.send("begin upload", begin(j, in)); r.GetError() != nil {
		return kind(r)
	}
	var id string
	mv.op("new upload", func() {
		// If the answer was lost, the mover looks for the upload that it started.
		maps.DeleteFunc(mv.s.uploads, func(_ string, u upload) bool { return u.key == task.Key })
		mv.s.number++
		id = fmt.Sprint("u", mv.s.number)
		mv.s.uploads[id] = upload{task.Key, content}
	})
	in.UploadId = id
	mv.must("begin upload with number", begin(j, in))
	sums := make([]uint32, (task.Attr.Size+3)/4)
	for first := 0; first == 0 || first < len(sums); first += statetier.MaxFlushSums {
		mv.must("sums", commitFlush(j, &wire.CommitFlush{FirstSum: uint64(first), Sums: sums[first:min(first+statetier.MaxFlushSums, len(sums))]}))
	}
	in.Completing, in.Etag, in.Size, in.Crc = true, etag(content), task.Attr.Size, 7
	mv.must("begin completing", begin(j, in))
	mv.op("complete", func() {
		if u, ok := mv.s.uploads[id]; ok {
			mv.s.objects[u.key] = u.content
			delete(mv.s.uploads, id)
		}
	})
	mv.must("commit", commitFlush(j, &wire.CommitFlush{Final: true, Object: &wire.Object{Bucket: "b", Key: task.Key, Etag: etag(content),
		Size: task.Attr.Size, Crc: 7, Generation: task.Attr.Generation, Piece: 4, Verified: wire.Verified_VERIFIED_STORE_CRC}}))
	return ""
}

func (mv *miniMover) evict(j *wire.Job) string {
	o := j.Move.Object
	if mv.s.objects[o.Key] == "" || etag(mv.s.objects[o.Key]) != o.Etag {
		mv.t.Fatalf("the store does not have %v", o)
	}
	return failed(mv.send("evict", &wire.MetaRequest{Op: &wire.MetaRequest_CommitEvict{CommitEvict: &wire.CommitEvict{
		Job: j.Id, LeaseEpoch: j.LeaseEpoch, Generation: j.Move.Attr.Generation, Object: o.Id}}}))
}

func failed(r *wire.MetaResponse) string {
	if r.GetError() != nil {
		return kind(r)
	}
	return ""
}

// stage puts every object extent of a file into a stripe of its own.
func (mv *miniMover) stage(j *wire.Job) string {
	if mv.sess == nil {
		mv.sess = mv.open(func(op *wire.OpenSession) { op.Node, op.Role = mv.node, "chunkserver" })
	}
	s := mv.sess
	old := mv.bench.node
	mv.bench.node = mv.node
	defer func() { mv.bench.node = old }()
	ex := s.extents(j.Inode, 0, 0).GetExtents()
	var stripes []*wire.Stripe
	in := stripe
	if mv.stagedIn != nil {
		in = mv.stagedIn
	}
	for _, e := range ex.GetExtents() {
		if e.Object == 0 {
			continue
		}
		g := s.grant(j.Inode, 1)
		if mv.staged != nil {
			at := slices.IndexFunc(ex.Objects, func(o *wire.Object) bool { return o.Id == e.Object })
			mv.staged(g, ex.Objects[at], e.StripeOffset, e.Length)
		}
		op := &wire.CommitStage{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Inode: j.Inode, Generation: ex.Attr.Generation, Object: e.Object,
			Stripes: append(stripes, in(g, e.Length, 1, 2, 3)), Extents: []*wire.Extent{extent(e.Offset, e.Length, g, 0)}}
		req := s.request(&wire.MetaRequest{Op: &wire.MetaRequest_CommitStage{CommitStage: op}})
		mv.pending = &wire.MetaRequest{Op: req.Op}
		var resp *wire.MetaResponse
		mv.op("stage", func() { resp = s.send(req).Response })
		mv.pending = nil
		if resp.GetError() != nil {
			return kind(resp)
		}
		// The answer was lost with the leader, so the mover sends the request under a new number.
		mv.ok(s.do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitStage{CommitStage: op}}))
	}
	return ""
}

func (mv *miniMover) remove(j *wire.Job) string {
	o := j.Move.Object
	if len(j.Move.Cluster) == 0 {
		panic("a mover is not told by which cluster's tag it knows its objects")
	}
	in := &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_DELETE, Bucket: "b", Key: o.Key, Object: o.Id}
	if r := mv.send("begin delete", begin(j, in)); r.GetError() != nil {
		return kind(r)
	}
	if mv.s.refuses != nil && mv.s.refuses(o.Key) {
		mv.must("end delete", &wire.MetaRequest{Op: &wire.MetaRequest_EndObject{EndObject: &wire.EndObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch}}})
		return "refused"
	}
	mv.op("delete", func() { delete(mv.s.objects, o.Key) })
	mv.must("deleted", &wire.MetaRequest{Op: &wire.MetaRequest_DeletedObject{DeletedObject: &wire.DeletedObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch}}})
	return ""
}

// wait lets time pass, in seconds.
func (y *tier) wait(seconds int) {
	for range seconds {
		y.tick(1000)
	}
}

func (y *tier) status() *wire.TierReply {
	return y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetTier{GetTier: &wire.GetTier{}}})).GetTier()
}

// drain lets movers work until no job is left. The first mover may crash on the way. Once another
// mover has its job, the state refuses the first one's requests.
func (y *tier) drain() {
	y.t.Helper()
	first := y.mover("n1")
	dead := false
	for n := 0; ; n++ {
		if n > 3000 {
			y.t.Fatalf("jobs do not end: %v", y.status())
		}
		mv := first
		if dead {
			mv = y.mover("n2")
		}
		worked := mv.work()
		if !dead && y.crash != nil && y.crash.hit != "" && y.crash.how != "twice" {
			dead = true
			if y.meanwhile != nil {
				y.meanwhile()
				y.check()
			}
			y.wait(16)
			y.fenced(first)
			continue
		}
		y.runTrees()
		s := y.status()
		if !worked && s.QueuedFlushes+s.QueuedStages+s.QueuedEvictions+s.QueuedDeletions == 0 {
			break
		}
		if !worked {
			y.wait(5)
		}
		if n == 12 { // late requests arrive well before their keys are settled
			y.arrive()
		}
	}
	y.arrive()
	y.wait(80)
	y.check()
}

func (y *tier) arrive() {
	for _, do := range y.s.late {
		do()
	}
	y.s.late = nil
}

// fenced lets a successor lease the jobs of a dead mover, and then sends the dead mover's request.
func (y *tier) fenced(first *miniMover) {
	y.t.Helper()
	req := first.pending
	if req == nil {
		return
	}
	y.mover("n2").work()
	resp := y.as("n1", "chunkserver", req)
	if k := kind(resp); k != "fenced" && k != "not found" && req.GetFinishJob() == nil && req.GetCommitStage() == nil {
		y.t.Errorf("a former holder's %T was answered %s", req.Op, k)
	}
}

// runTrees runs the leader's jobs.
func (y *tier) runTrees() {
	y.t.Helper()
	for {
		jobs, err := jobs.PendingJobs(y.m.View(y.kv), []wire.JobKind{wire.JobKind_JOB_KIND_MOVE_TREE, wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES}, 10)
		if err != nil {
			y.t.Fatal(err)
		}
		if len(jobs) == 0 {
			return
		}
		for _, j := range jobs {
			y.ok(y.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: j.Id, Limit: 30}}}).Response)
		}
	}
}

// sound checks the state after all work: no upload is left, the store has exactly the recorded
// objects, and everything that files refer to exists.
func (y *tier) sound(files ...uint64) {
	y.t.Helper()
	s := y.status()
	if len(y.s.uploads) > 0 || int(s.Objects) != len(y.s.objects) || s.Intents+s.UnsettledKeys > 0 {
		y.t.Errorf("the store has %d uploads and %v, the state %v", len(y.s.uploads), y.s.objects, s)
	}
	for _, f := range files {
		ex := y.ok(y.c.extents(f, 0, 0)).GetExtents()
		for _, o := range ex.GetObjects() {
			if have := y.s.objects[o.Key]; etag(have) != o.Etag || have != fmt.Sprintf("%x/%x", o.Inode, o.Generation) {
				y.t.Errorf("file %x reads object %v, the store has %q", f, o, have)
			}
		}
		if a := ex.GetAttr(); a.Object != 0 {
			o := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{Object: a.Object}}})).GetObject().GetObject()
			if have := y.s.objects[o.Key]; have != fmt.Sprintf("%x/%x", f, o.Generation) {
				y.t.Errorf("file %x has object %v, the store %q", f, o, have)
			}
			if a.Clean != (o.Generation == a.Generation) || (a.Clean && a.Level != uint32(moraine.Object)) {
				y.t.Errorf("file %x: %v with object %v", f, a, o)
			}
		}
	}
}

// queue queues moves.
func (y *tier) queue(kind wire.JobKind, inodes ...uint64) []*wire.Job {
	y.t.Helper()
	return y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: kind, Inodes: inodes}}})).GetJobs().GetJobs()
}

// write appends one stripe of n bytes to a file.
func (y *tier) write(f, n uint64) {
	y.t.Helper()
	g := y.c.grant(f, 1)
	y.ok(y.c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: 3,
		Stripes: []*wire.Stripe{stripe(g, n, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, n, g, 0)}}))
}

// replace makes a file n bytes of a new stripe.
func (y *tier) replace(f, n uint64) {
	y.t.Helper()
	g := y.c.grant(f, 1)
	y.ok(y.c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(g, n, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, n, g, 0)}}))
}

// quiet is drain without a crash, for the start of a scenario.
func (y *tier) quiet() {
	c := y.crash
	y.crash = nil
	y.drain()
	y.crash = c
}
