package state_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// largestCommand is how many records one command may write: some more than a full commit
// and a piece of a job, which write 1,371 and 1,405, do.
const largestCommand = 1500

// No command is large: the largest of each kind stays within the records that
// one command may touch, and what each took is logged, over a store in memory.
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
	step(func() { g = c.grant(f, state.MaxGrant) })
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
