package state_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// largestCommand bounds the records that one command may write. A full commit writes 1,371 and a
// piece of a job 1,405; the bound is slightly above.
const largestCommand = 1500

// The largest command of each kind writes at most largestCommand records. The test logs how long
// each took over a store in memory.
func TestLargestCommands(t *testing.T) {
	bn := newCluster(t, 6)
	c := bn.open(nil)
	longest := map[string]time.Duration{}
	most := map[string]int{}
	began, before := time.Now(), 0
	bn.mirror = func(cmd *statepb.Command, _ state.Result) {
		what := fmt.Sprintf("%T", cmd.GetOp())
		if req := cmd.GetRequest(); req != nil {
			what = fmt.Sprintf("%T", req.GetOp())
		}
		longest[what] = max(longest[what], time.Since(began))
		most[what] = max(most[what], bn.kv.Sets+bn.kv.Deletes-before)
		began, before = time.Now(), bn.kv.Sets+bn.kv.Deletes
	}
	step := func(fn func()) {
		began, before = time.Now(), bn.kv.Sets+bn.kv.Deletes
		fn()
	}

	f := c.mkfile(c.root, "f")
	var g uint64
	step(func() { g = c.grant(f, fleet.MaxGrant) })
	for n := range uint64(4) { // full commits: 4 tables
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND}
		stripes := min(uint64(moraine.MaxCommitStripes), moraine.MaxCommitChunks/6)
		for s := range stripes {
			id := g + n*stripes + s
			op.Stripes = append(op.Stripes, stripe(id, 64, 1, 2, 3, 4, 5, 6))
			for e := range uint64(moraine.MaxCommitExtents) / stripes {
				op.Extents = append(op.Extents, extent(uint64(len(op.Extents))*2, 1, id, e))
			}
		}
		step(func() { c.ok(c.commit(op)) })
	}
	largestRewritings(bn, c, f, step)
	var many []*wire.CloneRange
	for range 128 / 4 {
		many = append(many, &wire.CloneRange{Inode: f})
	}
	shared := c.mkfile(c.root, "shared")
	step(func() {
		c.ok(c.clone(&wire.Clone{Inode: shared, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: many}))
	})
	step(func() { c.ok(c.resize(shared, 700)) })
	wide, deep := c.mkdir(c.root, "wide"), c.mkdir(c.root, "deep")
	for n := range 1500 {
		c.mkfile(wide, fmt.Sprint(n))
	}
	at := deep
	for range 400 {
		at = c.mkdir(at, "d")
	}
	step(func() { c.file(at, "f", 10) })
	step(func() { c.ok(c.rename(&wire.Rename{Parent: c.root, Name: "wide", NewParent: at, NewName: "wide"})) })
	step(func() { c.ok(c.cloneTree(deep, c.root, "copy")) })
	pieces := func(kind wire.JobKind) {
		for more := true; more; {
			step(func() { more = bn.runLeaderJob(kind, 1000) })
		}
	}
	bn.recount()
	pieces(wire.JobKind_JOB_KIND_RECOUNT)
	pieces(wire.JobKind_JOB_KIND_CLONE_TREE)
	c.wantUsage("the copy", c.walkTo("/copy"), 10, 400+1+1+1500)
	step(func() { c.ok(c.removeTree(c.root, "copy")) })
	step(func() { c.ok(c.removeTree(c.root, "deep")) })
	pieces(wire.JobKind_JOB_KIND_REMOVE_TREE)
	step(func() { c.ok(c.remove(&wire.Remove{Parent: c.root, Name: "f"})) })
	step(func() { c.ok(c.remove(&wire.Remove{Parent: c.root, Name: "shared"})) })
	pieces(wire.JobKind_JOB_KIND_DROP_TABLES)
	bn.check()
	for _, what := range slices.Sorted(mapKeys(longest)) {
		t.Logf("%-40s %8s %5d records at most", what, longest[what].Round(10*time.Microsecond), most[what])
		if most[what] > largestCommand {
			t.Errorf("%s wrote %d records", what, most[what])
		}
	}
}

// largestRewritings makes a mover rewrite as many stripes of one file as one command may, and pack
// as many files as one may.
func largestRewritings(bn *bench, c *client, file uint64, step func(func())) {
	old := bn.node
	defer func() { bn.node = old }()
	const fewer = content.MaxRewriteStripes
	rewrite, stripes := &wire.RewrittenFile{Inode: file}, []uint64(nil)
	all := bn.ok(c.extents(file, 0, 1000)).GetExtents().GetExtents()
	for n := range fewer { // of all its tables
		e := all[n*len(all)/fewer]
		rewrite.Was, stripes = append(rewrite.Was, e), append(stripes, e.Stripe)
	}
	var pack []*wire.RewrittenFile
	task := &wire.RewriteTask{}
	g := c.grant(c.root, content.MaxPackFiles)
	for n := range uint64(content.MaxPackFiles) {
		f := c.mkfile(c.root, fmt.Sprint("small", n))
		c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Stripes: []*wire.Stripe{stripe(g+n, 10, 1, 2, 3)},
			Extents: []*wire.Extent{extent(0, 10, g+n, 0)}}))
		task.Files = append(task.Files, f)
		pack = append(pack, &wire.RewrittenFile{Inode: f, Was: []*wire.Extent{extent(0, 10, g+n, 0)}})
	}

	bn.node = "n1"
	mover := bn.open(func(op *wire.OpenSession) { op.Node, op.Role = "n1", "chunkserver" })
	fresh := mover.grant(c.root, 2)
	do := func(job *wire.Job, files ...*wire.RewrittenFile) {
		job.Kind = rewriteJob
		bn.ok(bn.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}).Response)
		job = bn.ok(bn.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
			Host: "n1", Kinds: []wire.JobKind{rewriteJob}, Max: 1}}})).GetJobs().GetJobs()[0]
		at := uint64(0)
		for _, f := range files {
			for _, e := range f.Was {
				f.Extents = append(f.Extents, extent(e.Offset, e.Length, fresh, at))
				at += e.Length
			}
		}
		op := &wire.CommitRewrite{Job: job.Id, LeaseEpoch: job.LeaseEpoch, Stripes: []*wire.Stripe{stripe(fresh, at, 1, 2, 3, 4, 5, 6)}, Files: files}
		fresh++
		step(func() { bn.ok(mover.do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitRewrite{CommitRewrite: op}})) })
		bn.ok(bn.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: job.Id, LeaseEpoch: job.LeaseEpoch}}}))
	}
	do(&wire.Job{Inode: file, Rewrite: &wire.RewriteTask{End: 1 << 20, Stripes: stripes}}, rewrite)
	do(&wire.Job{Rewrite: task}, pack...)
}
