package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func (c *client) concat(op *wire.Concat) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: op}})
}

// unnamed makes a file without a name.
func (c *client) unnamed() uint64 {
	c.t.Helper()
	return c.ok(c.create(&wire.Create{Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Unlinked: true})).GetEntry().GetAttr().GetInode()
}

// parts makes files of 1 to tables tables of 256 extents each in a directory /parts. It returns the
// directory and the requested number of ranges: in turn whole files and ranges that begin and end
// within a table.
func (c *client) parts(files, tables, ranges int) (dir uint64, out []*wire.CloneRange) {
	c.t.Helper()
	dir = c.mkdir(c.root, "parts")
	var inodes []uint64
	for n := range files {
		f := c.mkfile(dir, fmt.Sprint("part-", n))
		c.fill(f, 1+n%tables)
		inodes = append(inodes, f)
	}
	for n := range ranges {
		a := c.attr(inodes[n%files])
		r := &wire.CloneRange{Inode: a.Inode, Generation: a.Generation}
		if n%5 == 4 {
			r.Offset, r.Length = 100, a.Size-300
		}
		out = append(out, r)
	}
	return dir, out
}

// smallParts is parts of few extents.
func (c *client) smallParts(ranges int) (dir uint64, out []*wire.CloneRange, size uint64) {
	c.t.Helper()
	dir = c.mkdir(c.root, "parts")
	for n := range 4 {
		f := c.mkfile(dir, fmt.Sprint("part-", n))
		g := c.grant(f, 1)
		op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{stripe(g, 512, 1)}}
		for e := range uint64(8) {
			op.Extents = append(op.Extents, extent(10*e, 5, g, 5*e))
		}
		op.Stripes[0].Length = 40
		c.ok(c.commit(op))
	}
	for n := range ranges {
		a := c.attr(c.walkTo(fmt.Sprint("/parts/part-", n%4)))
		r := &wire.CloneRange{Inode: a.Inode, Generation: a.Generation, Length: a.Size}
		if n%8 == 3 {
			r.Offset, r.Length = 12, 50
		}
		out = append(out, r)
		size += r.Length
	}
	return dir, out, size
}

// layout lists every extent of a file.
func (c *client) layout(inode uint64) (out []string, size uint64) {
	c.t.Helper()
	for offset := uint64(0); ; {
		page := c.ok(c.extents(inode, offset, 1000)).GetExtents()
		for _, e := range page.GetExtents() {
			out = append(out, fmt.Sprintf("%d+%d=%x@%d", e.Offset, e.Length, e.Stripe, e.StripeOffset))
			offset = e.Offset + e.Length
		}
		if !page.GetMore() {
			return out, c.attr(inode).Size
		}
	}
}

// joined is the expected layout of the concatenated ranges.
func (c *client) joined(ranges []*wire.CloneRange) (out []string, size uint64) {
	c.t.Helper()
	for _, r := range ranges {
		whole := c.attr(r.Inode).Size
		length := r.Length
		if length == 0 {
			length = whole - r.Offset
		}
		for offset := r.Offset; ; {
			page := c.ok(c.extents(r.Inode, offset, 1000)).GetExtents()
			for _, e := range page.GetExtents() {
				offset = e.Offset + e.Length
				from, to := max(e.Offset, r.Offset), min(offset, r.Offset+length)
				if from < to {
					out = append(out, fmt.Sprintf("%d+%d=%x@%d", size+from-r.Offset, to-from, e.Stripe, e.StripeOffset+from-e.Offset))
				}
			}
			if !page.GetMore() {
				break
			}
		}
		size += length
	}
	return out, size
}

// concatJobOf starts a concatenation that needs a job.
func (c *client) concatJobOf(into uint64, ranges []*wire.CloneRange, consume uint64, replace bool) *wire.Job {
	c.t.Helper()
	jobs := c.ok(c.concat(&wire.Concat{Inode: into, Ranges: ranges, Consume: consume,
		Link: &wire.LinkTarget{Parent: c.root, Name: "whole", Replace: replace}})).GetJobs().GetJobs()
	if len(jobs) != 1 {
		c.t.Fatal("no job was made")
	}
	return jobs[0]
}

// A file is built from many ranges in pieces of any size and becomes visible when it is whole, not
// before. The same entry removes the sources.
func TestConcat(t *testing.T) {
	for _, limit := range testseed.Of([]uint32{5, 1000}, []uint32{1, 5, 100, 1000}) {
		t.Run(fmt.Sprint("pieces of ", limit), func(t *testing.T) {
			count := 150
			if limit < 100 && !testseed.Long() {
				count = 50 // so small pieces are many
			}
			bn := newCluster(t, 1)
			c := bn.open(nil)
			dir, ranges := c.parts(4, 9, count)
			want, size := c.joined(ranges)
			before := c.usage(c.root)
			into := c.unnamed()
			job := c.concatJobOf(into, ranges, dir, false)
			pieces := 0
			for ; c.ended(job.Id).State == wire.JobState_JOB_STATE_PENDING; pieces++ {
				if c.exists("/whole") || !c.exists("/parts") || c.usage(c.root) != before {
					t.Fatal("the file is seen before it is whole")
				}
				if k := kind(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: into}}})); k != "not found" {
					t.Fatalf("by its number it is %s before it is whole", k)
				}
				if k := kind(c.resize(into, 3)); k != "not found" {
					t.Fatalf("a change of it is %s before it is whole", k)
				}
				wrote := bn.kv.Sets + bn.kv.Deletes
				bn.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, limit)
				// A table of 256 extents that is cut is at least one piece.
				if wrote = bn.kv.Sets + bn.kv.Deletes - wrote; wrote > max(int(limit), 516)+20 {
					t.Errorf("a piece of %d wrote %d keys", limit, wrote)
				}
				if limit > 50 || pieces%20 == 0 {
					bn.check()
				}
			}
			t.Logf("%d pieces", pieces)
			j := c.ended(job.Id)
			if j.State != wire.JobState_JOB_STATE_DONE || j.Done != uint64(len(ranges)) || j.Inode != into || j.Generation != c.attr(into).Generation {
				t.Fatalf("the job ended as %v", j)
			}
			if have, n := c.layout(c.walkTo("/whole")); n != size || strings.Join(have, " ") != strings.Join(want, " ") {
				t.Errorf("the file has %d bytes in %d extents, its parts %d in %d, or others", n, len(have), size, len(want))
			}
			if c.exists("/parts") {
				t.Error("the parts are there beside the whole")
			}
			bn.settleJobs()
			bn.check()
			if a := c.attr(into); c.usage(c.root) != [2]uint64{a.Size, 1} || a.Level != uint32(moraine.NVMe) {
				t.Errorf("%v are counted of %v", c.usage(c.root), a)
			}
			c.ok(c.removeTreeOr(c.root, "whole"))
			bn.settleJobs()
			bn.check()
			if n, err := kvtx.ReadCounters(bn.m.View(bn.kv)); err != nil || n.Stripes != 0 || n.Inodes != 1 {
				t.Errorf("%d stripes and %d inodes are left (%v)", n.Stripes, n.Inodes, err)
			}
		})
	}
}

// The entry that names the file checks the condition on the name's previous owner, also when the
// job does it.
func TestConcatExpectsWhatHasTheName(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprint("held ", held), func(t *testing.T) {
			bn := newCluster(t, 1)
			c := bn.open(nil)
			dir, ranges := c.parts(4, 9, 150)
			old := c.mkfile(c.root, "whole")
			op := &wire.Concat{Inode: c.unnamed(), Ranges: ranges, Consume: dir, Link: &wire.LinkTarget{Parent: c.root, Name: "whole", Replace: true,
				Expect: &wire.Expect{Inode: old, Generation: c.attr(old).Generation}}}
			job := c.ok(c.concat(op)).GetJobs().GetJobs()[0]
			if !held {
				c.ok(c.resize(old, 1))
			}
			for c.ended(job.Id).State == wire.JobState_JOB_STATE_PENDING {
				bn.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 1000)
			}
			j := c.ended(job.Id)
			if held && (j.State != wire.JobState_JOB_STATE_DONE || c.walkTo("/whole") == old) {
				t.Errorf("the job ended as %v", j)
			}
			if !held && (moraine.Kind(j.Failed) != moraine.Conflict || c.walkTo("/whole") != old || !c.exists("/parts")) {
				t.Errorf("the job ended as %v", j)
			}
			bn.settleJobs()
			bn.check()
		})
	}
}

// removeTreeOr removes a file.
func (c *client) removeTreeOr(dir uint64, name string) *wire.MetaResponse {
	c.t.Helper()
	return c.remove(&wire.Remove{Parent: dir, Name: name})
}

// A concatenation that fits one command is done in it: the answer finds the file there and the
// parts gone.
func TestConcatAtOnce(t *testing.T) {
	bn := newCluster(t, 1)
	c := bn.open(nil)
	dir, ranges, _ := c.smallParts(60)
	want, size := c.joined(ranges)
	into := c.unnamed()
	op := &wire.Concat{Inode: into, Ranges: ranges, Consume: dir, Link: &wire.LinkTarget{Parent: c.root, Name: "whole"}}
	req := c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Concat{Concat: op}})
	first := c.ok(c.send(req).Response)
	if a := first.GetCommit().GetAttr(); a.GetInode() != into || a.GetSize() != size {
		t.Fatalf("the answer is %v", first)
	}
	if again := c.send(req); !again.Repeated || again.Response.GetCommit().GetAttr().GetGeneration() != first.GetCommit().GetAttr().GetGeneration() {
		t.Errorf("the same request again was answered %v", again.Response)
	}
	if have, _ := c.layout(c.walkTo("/whole")); strings.Join(have, " ") != strings.Join(want, " ") {
		t.Error("the file is not what its parts were")
	}
	if c.exists("/parts") {
		t.Error("the parts are there beside the whole")
	}
	bn.settleJobs()
	bn.check()
	if k := kind(c.concat(op)); k != "invalid argument" {
		t.Errorf("into a file that has a name: %s", k)
	}
	if *rewriteLogs {
		bn.writeLog("v1-concat-at-once")
	}
}

// An impossible concatenation is refused at once and changes nothing.
func TestConcatRefuses(t *testing.T) {
	bn := newCluster(t, 1)
	c := bn.open(nil)
	dir, ranges := c.parts(4, 9, 150)
	c.mkdir(c.root, "d")
	file := c.mkfile(c.root, "f")
	full := c.unnamed()
	c.ok(c.resize(full, 1))
	link := func(name string) *wire.LinkTarget { return &wire.LinkTarget{Parent: c.root, Name: name} }
	in := func(parent uint64) *wire.LinkTarget { return &wire.LinkTarget{Parent: parent, Name: "w"} }
	for _, r := range []struct {
		name string
		op   *wire.Concat
		want string
	}{
		{"a file with a name", &wire.Concat{Inode: file, Ranges: ranges, Link: link("w")}, "invalid argument"},
		{"a file with content", &wire.Concat{Inode: full, Ranges: ranges, Link: link("w")}, "invalid argument"},
		{"no name", &wire.Concat{Ranges: ranges}, "invalid argument"},
		{"a name that is none", &wire.Concat{Ranges: ranges, Link: link("..")}, "invalid argument"},
		{"a name that is taken", &wire.Concat{Ranges: ranges, Link: link("f")}, "already exists"},
		{"the name of a directory", &wire.Concat{Ranges: ranges, Link: &wire.LinkTarget{Parent: c.root, Name: "d", Replace: true}}, "is a directory"},
		{"a directory that is not", &wire.Concat{Ranges: ranges, Link: in(file)}, "not a directory"},
		{"a range of itself", &wire.Concat{Ranges: []*wire.CloneRange{{}}, Link: link("w")}, "invalid argument"},
		{"its own directory consumed", &wire.Concat{Ranges: ranges, Link: in(dir), Consume: dir}, "invalid argument"},
		{"the root consumed", &wire.Concat{Ranges: ranges, Link: link("w"), Consume: c.root}, "invalid argument"},
		{"a file consumed", &wire.Concat{Ranges: ranges, Link: link("w"), Consume: file}, "not a directory"},
		{"too many ranges", &wire.Concat{Ranges: make([]*wire.CloneRange, wire.MaxConcatRanges+1), Link: link("w")}, "too large"},
	} {
		if r.op.Inode == 0 {
			r.op.Inode = c.unnamed()
		}
		for _, x := range r.op.Ranges {
			if x != nil && x.Inode == 0 {
				x.Inode = r.op.Inode
			}
		}
		if k := kind(c.concat(r.op)); k != r.want {
			t.Errorf("%s: %s, want %s", r.name, k, r.want)
		}
	}
	jobs, err := jobs.PendingJobs(bn.m.View(bn.kv), []wire.JobKind{wire.JobKind_JOB_KIND_CONCAT}, 1)
	if err != nil || len(jobs) > 0 {
		t.Errorf("%d jobs were made (%v)", len(jobs), err)
	}
	bn.check()
}

// Whatever happens to a concatenation after any of its pieces, either the whole file exists and the
// parts are gone, or the parts exist and the job says why.
func TestConcatFaults(t *testing.T) {
	const done, failed = wire.JobState_JOB_STATE_DONE, wire.JobState_JOB_STATE_FAILED
	part := func(c *client) uint64 { return c.walkTo("/parts/part-3") } // in the last range
	faults := []struct {
		name string
		do   func(c *client, job uint64)
		want wire.JobState
		why  string // of the failure
	}{
		{"nothing", func(*client, uint64) {}, done, ""},
		{"canceled", func(c *client, job uint64) {
			c.ok(c.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: job}}}))
		}, wire.JobState_JOB_STATE_CANCELED, ""},
		{"the target is replaced", func(c *client, _ uint64) {
			c.ok(c.remove(&wire.Remove{Parent: c.root, Name: "whole"}))
			c.mkfile(c.root, "whole")
		}, done, ""},
		{"the target becomes a directory", func(c *client, _ uint64) {
			c.ok(c.remove(&wire.Remove{Parent: c.root, Name: "whole"}))
			c.mkdir(c.root, "whole")
		}, failed, "is a directory"},
		{"the quota is full", func(c *client, _ uint64) { c.ok(c.setQuota(c.root, c.usage(c.root)[0]/2, 0)) }, failed, "quota exceeded"},
		{"the session ends", func(c *client, _ uint64) {
			c.ok(c.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}).Response)
			*c = *c.bench.open(nil)
		}, done, ""},
		{"a part changes", func(c *client, _ uint64) { c.ok(c.resize(part(c), 3000)) }, failed, "stale"},
		{"a part is put again", func(c *client, _ uint64) {
			c.ok(c.remove(&wire.Remove{Parent: c.walkTo("/parts"), Name: "part-3"}))
			c.mkfile(c.walkTo("/parts"), "part-3")
		}, failed, "not found"},
		{"the parts are given up", func(c *client, _ uint64) { c.ok(c.removeTree(c.root, "parts")) }, failed, "not found"},
		{"the parts are given up, and gone", func(c *client, _ uint64) { c.ok(c.removeTree(c.root, "parts")); c.settleJobs() }, failed, "not found"},
		{"the parts move", func(c *client, _ uint64) {
			c.ok(c.rename(&wire.Rename{Parent: c.root, Name: "parts", NewParent: c.mkdir(c.root, "other"), NewName: "moved"}))
		}, done, ""},
	}
	runs := testseed.Sample(t, 5)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			for after := 0; ; after++ {
				if !runs() && !*rewriteLogs {
					continue
				}
				bn := newCluster(t, 1)
				c := bn.open(nil)
				dir, ranges, size := c.smallParts(600)
				c.fill(c.mkfile(c.root, "whole"), 1)
				job := c.concatJobOf(c.unnamed(), ranges, dir, true).Id
				for range after {
					bn.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 140)
				}
				if c.ended(job).State != wire.JobState_JOB_STATE_PENDING {
					if after < 5 {
						t.Fatalf("it took %d pieces: too few for this test", after)
					}
					return
				}
				laid := c.ended(job).Done == uint64(len(ranges)) // changes to a part no longer matter
				f.do(c, job)
				bn.check()
				for bn.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 140) {
					bn.check()
				}
				want, why := f.want, f.why
				if laid && (why == "stale" || f.name == "a part is put again") {
					want, why = done, ""
				}
				j := c.ended(job)
				if j.State != want || (j.Error == "") != (want == done) || why != "" && moraine.Kind(j.Failed).String() != why {
					t.Fatalf("after %d pieces: the job ended %s: %s: %q", after, j.State, moraine.Kind(j.Failed), j.Error)
				}
				// The last piece may be repeated: a piece of an ended job does nothing.
				sum, _ := kvtx.Sum(bn.m.View(bn.kv))
				bn.ok(bn.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: job, Limit: 140}}}).Response)
				if c.ended(job).State != want || sum == (record.Sum{}) {
					t.Fatal("a piece of a job that is over changed it")
				}
				bn.settleJobs()
				bn.check()
				if *rewriteLogs && after == 2 && (f.name == "nothing" || f.name == "a part changes") {
					bn.writeLog("v1-concat-" + strings.ToLower(want.String()[len("JOB_STATE_"):]))
				}
				if whole := c.exists("/whole") && c.attr(c.walkTo("/whole")).Size == size; whole != (want == done) {
					t.Fatalf("after %d pieces: the job ended %s, the whole is there: %t", after, want, whole)
				}
				if given := strings.Contains(f.name, "given up"); (c.exists("/parts") || c.exists("/other/moved")) == (want == done || given) {
					t.Fatalf("after %d pieces: the job ended %s, and the parts are not where they should be", after, want)
				}
				c.ok(c.setQuota(c.root, 0, 0))
				for _, name := range []string{"parts", "other", "whole"} {
					if c.exists("/" + name) {
						if k := kind(c.remove(&wire.Remove{Parent: c.root, Name: name})); k == "is a directory" {
							c.ok(c.removeTree(c.root, name))
						}
					}
				}
				bn.settleJobs()
				bn.check()
				if n, err := kvtx.ReadCounters(bn.m.View(bn.kv)); err != nil || n.Stripes != 0 || n.Inodes != 1 {
					t.Fatalf("after %d pieces: %d stripes and %d inodes are left (%v)", after, n.Stripes, n.Inodes, err)
				}
			}
		})
	}
}

// An upload with the most parts allowed (a fifth of them in the short form) is one request, and no
// piece of its job is large.
func TestConcatOfTenThousand(t *testing.T) {
	parts := testseed.Of(wire.MaxConcatRanges/5, wire.MaxConcatRanges)
	bn := newCluster(t, 1)
	c := bn.open(nil)
	dir := c.mkdir(c.root, "parts")
	var ranges []*wire.CloneRange
	var g uint64
	for n := range parts {
		f := c.mkfile(dir, fmt.Sprint(n))
		if n%1000 == 0 {
			g = c.grant(f, 1000)
		}
		id := g + uint64(n%1000)
		c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND,
			Stripes: []*wire.Stripe{stripe(id, 64, 1)}, Extents: []*wire.Extent{extent(0, 64, id, 0)}}))
		ranges = append(ranges, &wire.CloneRange{Inode: f})
	}
	most, before := 0, bn.kv.Sets+bn.kv.Deletes
	bn.mirror = func(*statepb.Command, state.Result) {
		now := bn.kv.Sets + bn.kv.Deletes
		most, before = max(most, now-before), now
	}
	before = bn.kv.Sets + bn.kv.Deletes
	job := c.concatJobOf(c.unnamed(), ranges, dir, false)
	for bn.runLeaderJob(wire.JobKind_JOB_KIND_CONCAT, 1000) {
	}
	bn.mirror = nil
	if j := c.ended(job.Id); j.State != wire.JobState_JOB_STATE_DONE {
		t.Fatalf("the job ended %s: %s", j.State, j.Error)
	}
	if size := c.attr(c.walkTo("/whole")).Size; size != 64*uint64(parts) {
		t.Errorf("the whole has %d bytes", size)
	}
	if most > 1020 {
		t.Errorf("a command wrote %d keys", most)
	}
	bn.settleJobs()
	bn.check()
}
