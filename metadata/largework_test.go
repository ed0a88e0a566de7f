package metadata_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// largeWork has the cost of pieces of the leader's jobs, by kind of job.
type largeWork struct {
	*applier
	kinds map[uint64]string // of jobs
	took  map[string][]time.Duration
	cpu   map[string]time.Duration // the largest cost of one piece
}

// Work of any size is done in small commands, over the servers' real store: a tree is cloned,
// recounted and removed, and thousands of its files are concatenated. The longest application of an
// entry is logged. In the long form the tree has 200,000 files.
func TestLargeWorkOnADisk(t *testing.T) {
	files, parts := testseed.Of(1_500, 200_000), testseed.Of(600, wire.MaxConcatRanges)
	w := &largeWork{applier: newApplier(t), kinds: map[uint64]string{}, took: map[string][]time.Duration{}, cpu: map[string]time.Duration{}}
	bench, sources := w.tree(files)
	w.note = w.noted
	root := uint64(moraine.RootInode)
	w.job("clone of a tree", w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_CloneTree{CloneTree: &wire.CloneTree{Inode: bench, Parent: root, Name: "copy"}}}), wire.JobKind_JOB_KIND_CLONE_TREE)
	w.job("recount", w.command(&statepb.Command{Caller: &statepb.Caller{Node: "a", Role: "admin"}, Op: &statepb.Command_Request{
		Request: &wire.MetaRequest{Op: &wire.MetaRequest_Recount{Recount: &wire.Recount{}}}}}), wire.JobKind_JOB_KIND_RECOUNT)
	into := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true}}}).GetEntry().Attr.Inode
	op := &wire.Concat{Inode: into, Link: &wire.LinkTarget{Parent: root, Name: "whole"}}
	for n := range parts {
		op.Ranges = append(op.Ranges, &wire.CloneRange{Inode: sources[n%len(sources)]})
	}
	w.job("concatenation", w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: op}}), wire.JobKind_JOB_KIND_CONCAT)
	for _, name := range []string{"copy", "bench"} {
		w.job("removal of a tree", w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveTree{RemoveTree: &wire.RemoveTree{Parent: root, Name: name}}}), wire.JobKind_JOB_KIND_REMOVE_TREE)
	}
	w.job("removal of a file", w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: "whole"}}}), wire.JobKind_JOB_KIND_DROP_TABLES)
	w.report(t)
	require.NoError(t, w.store.View(func(r kvtx.Reader, _ uint64) error {
		n, err := kvtx.ReadCounters(w.machine.View(r))
		require.EqualValues(t, 1, n.Inodes, "something is left")
		require.Zero(t, n.Stripes, "something is left")
		return err
	}))
}

// tree makes that many files, of one stripe each, in the sessions' directories, and returns their
// parent and the files.
func (w *largeWork) tree(files int) (parent uint64, inodes []uint64) {
	each := (files + applySessions - 1) / applySessions
	for s := range applySessions {
		for n := 0; n < each; n += applyGroup {
			group := min(applyGroup, each-n)
			if n%applyGrant == 0 {
				first := w.command(w.of(w.request(s, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{
					Inode: w.dirs[s], Count: applyGrant, Scheme: &wire.Scheme{K: 1, M: 2}}}}))).GetGrant().GetFirst()
				w.grants[s] = append(w.grants[s], first)
			}
			var entry [][]byte
			for i := range group {
				entry = append(entry, w.marshal(w.of(w.request(s, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
					Parent: w.dirs[s], Name: fmt.Sprintf("file-%07d", n+i), Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644}}}))))
			}
			var commits [][]byte
			for i, r := range w.propose(state.EncodeEntry(entry)) {
				inodes = append(inodes, r.Response.GetEntry().GetAttr().GetInode())
				commits = append(commits, w.marshal(w.of(w.request(s, w.commit(s, n+i, inodes[len(inodes)-1])))))
			}
			w.propose(state.EncodeEntry(commits))
		}
	}
	require.NoError(w.b, w.store.View(func(r kvtx.Reader, _ uint64) error {
		at, err := w.machine.Read(r, &statepb.Caller{Node: "c1", Scope: "/"}, &wire.MetaRequest{Op: &wire.MetaRequest_Lookup{Lookup: &wire.Lookup{Parent: uint64(moraine.RootInode), Name: "bench"}}})
		parent = at.GetEntry().GetAttr().GetInode()
		return err
	}))
	return parent, inodes
}

// ask sends a request of the first session.
func (w *largeWork) ask(req *wire.MetaRequest) *wire.MetaResponse {
	return w.command(w.of(w.request(0, req)))
}

// job runs the jobs of a kind to their end, as a leader does.
func (w *largeWork) job(what string, _ *wire.MetaResponse, kind wire.JobKind) {
	for {
		var ready []*wire.Job
		require.NoError(w.b, w.store.View(func(r kvtx.Reader, _ uint64) (err error) {
			ready, err = jobs.PendingJobs(w.machine.View(r), []wire.JobKind{kind}, 4)
			return err
		}))
		if len(ready) == 0 {
			return
		}
		for _, j := range ready {
			w.kinds[j.Id] = what
			w.command(&statepb.Command{Caller: &statepb.Caller{Node: "m1", Role: "metadata"}, Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: j.Id, Limit: 512}}})
		}
	}
}

// noted records an entry's cost by what it did.
func (w *largeWork) noted(commands []*statepb.Command, took, cpu time.Duration) {
	what := fmt.Sprintf("%T", commands[0].GetRequest().GetOp())
	if run := commands[0].GetRunJob(); run != nil {
		what = "piece of a " + w.kinds[run.Id]
	}
	w.took[what] = append(w.took[what], took)
	w.cpu[what] = max(w.cpu[what], cpu)
}

func (w *largeWork) report(t *testing.T) {
	for _, what := range slices.Sorted(maps.Keys(w.took)) {
		all := w.took[what]
		slices.Sort(all)
		over := len(all) - mustIndex(all, 100*time.Millisecond)
		t.Logf("%-40s %6d entries, median %8s, p99 %8s, longest %8s (%s of CPU at most), %d over 100 ms", what, len(all), round(all[len(all)/2]), round(all[len(all)*99/100]), round(all[len(all)-1]), round(w.cpu[what]), over)
	}
	s := w.store.Status()
	t.Logf("every batch of entries of the run, applied and committed: %d, median %s, p99 %s, longest %s", s.Apply.Count, s.Apply.P50, s.Apply.P99, s.Apply.Max)
}

// mustIndex returns the index of the first duration of at least d.
func mustIndex(sorted []time.Duration, d time.Duration) int {
	n, _ := slices.BinarySearch(sorted, d)
	return n
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
