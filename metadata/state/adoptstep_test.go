package state_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	adoptJob   = wire.JobKind_JOB_KIND_ADOPT
	trackerJob = wire.JobKind_JOB_KIND_READ_TRACKER
	stepJob    = wire.JobKind_JOB_KIND_COMMIT_STEP
	dcp        = wire.CheckpointFormat_CHECKPOINT_FORMAT_DCP
	megatron   = wire.CheckpointFormat_CHECKPOINT_FORMAT_MEGATRON
	jobDone    = wire.JobState_JOB_STATE_DONE
	jobFailed  = wire.JobState_JOB_STATE_FAILED
)

// foreign is a directory that a framework wrote: /d/ck-7 with files of many tables, some in
// sub-directories, and more files than one part has.
type foreign struct {
	*client
	dir uint64
}

func newForeign(t *testing.T) *foreign {
	t.Helper()
	c := newCluster(t, 3).open(nil)
	f := &foreign{client: c, dir: c.mkdir(c.mkdir(c.root, "d"), "ck-7")}
	c.fill(c.mkfile(f.dir, "large"), 5)
	sub := c.mkdir(c.mkdir(f.dir, "mp"), "00")
	for n := range 66 {
		c.fill(c.mkfile(sub, fmt.Sprintf("f%02d", n)), 1)
	}
	c.mkfile(f.dir, "empty")
	return f
}

func (f *foreign) adopt(step uint64) *wire.MetaResponse {
	f.t.Helper()
	return f.do(&wire.MetaRequest{Op: &wire.MetaRequest_AdoptStep{AdoptStep: &wire.AdoptStep{Dir: f.dir, Parent: f.root, Name: "r", Step: step, Format: dcp}}})
}

// adopting queues the job and returns its number.
func (f *foreign) adopting(step uint64) uint64 {
	f.t.Helper()
	return f.ok(f.adopt(step)).GetJobs().GetJobs()[0].Id
}

// pieces runs the leader's part of adoptions to its end.
func (f *foreign) pieces(limit uint32) (n int) {
	f.t.Helper()
	for f.runLeaderJob(adoptJob, limit) {
		n++
	}
	return n
}

// later lets so many seconds of cluster time pass.
func (f *foreign) later(seconds int) {
	f.t.Helper()
	for range seconds {
		f.tick(1000)
	}
}

// judge does the mover's part: it commits the sealed step, or refuses it with a text.
func (f *foreign) judge(why string) bool {
	f.t.Helper()
	resp := f.as("m1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Host: "m1", Kinds: []wire.JobKind{stepJob}, Max: 1}}})
	if len(f.ok(resp).GetJobs().GetJobs()) == 0 {
		return false
	}
	j := resp.GetJobs().GetJobs()[0]
	op := &wire.CommitStep{Key: j.Step, Job: j.Id, LeaseEpoch: j.LeaseEpoch, Error: why}
	if why == "" {
		s := &ckptScript{bench: f.bench}
		op.Index = s.file(f.client, "index.moraine", 50)
	}
	if resp := f.do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitStep{CommitStep: op}}); resp.GetError() != nil {
		f.ok(f.do(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch, Error: resp.GetError().Text + " removed", Final: true}}}))
	}
	return true
}

func (f *foreign) steps(all bool) (out []*wire.Step) {
	f.t.Helper()
	w := f.walk("/r")
	if !w.GetWalk().GetFound() {
		return nil
	}
	resp := f.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: w.GetWalk().GetAttr().GetInode(), All: all}}})
	return resp.GetSteps().GetSteps()
}

// holds checks that a committed step has the files as they are in the directory: the same extents
// under their escaped names.
func (f *foreign) holds(path string) {
	f.t.Helper()
	names := map[string]string{"large": "large", "empty": "empty"}
	for n := range 66 {
		names[fmt.Sprintf("mp/00/f%02d", n)] = fmt.Sprintf("mp%%2F00%%2Ff%02d", n)
	}
	for from, to := range names {
		a, b := f.walkTo("/d/ck-7/"+from), f.walkTo(path+"/"+to)
		x, y := f.attr(a), f.attr(b)
		if x.Size != y.Size || x.Mode != y.Mode || x.Mtime != y.Mtime || a == b {
			f.t.Errorf("%s is %v, and %v in the step", from, x, y)
		}
		if fmt.Sprint(f.ok(f.extents(a, 0, 0)).GetExtents().GetExtents()) != fmt.Sprint(f.ok(f.extents(b, 0, 0)).GetExtents().GetExtents()) {
			f.t.Errorf("%s has other bytes in the step", from)
		}
	}
	dir := f.ok(f.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: f.walkTo(path)}}})).GetReadDir().GetEntries()
	if len(dir) != len(names)+1 {
		f.t.Errorf("the step has %d files, want %d and the index", len(dir), len(names))
	}
}

// TestAdoptedStep: in pieces of any size, the step is whole or not there. It shares all bytes with
// the directory, which stays as it is and may change and go.
func TestAdoptedStep(t *testing.T) {
	for _, limit := range []uint32{1, 7, 40, 1000} {
		t.Run(fmt.Sprint("pieces of ", limit), func(t *testing.T) {
			f := newForeign(t)
			before := f.usage(f.dir)
			job := f.adopting(100)
			for n := 0; f.runLeaderJob(adoptJob, limit); n++ {
				if limit >= 40 || n%37 == 0 {
					f.check()
				}
				if len(f.steps(false)) > 0 || f.exists("/r/latest") {
					t.Fatal("the step is there before it was checked")
				}
			}
			if !f.judge("") {
				t.Fatal("nothing checks the step")
			}
			f.check()
			if j := f.ended(job); j.State != jobDone {
				t.Fatalf("the job ended %s: %s", j.State, j.Error)
			}
			f.holds("/r/latest")
			s := f.steps(false)[0]
			if s.Adopted.GetFormat() != dcp || s.Adopted.GetDir() != f.dir || s.World != 2 || s.Key.Attempt != 1 || s.Key.Step != 100 {
				t.Errorf("the step is %v", s)
			}
			if f.usage(f.dir) != before {
				t.Error("the directory changed")
			}
			// The framework goes on with its directory; the step stays.
			f.ok(f.resize(f.walkTo("/d/ck-7/mp/00/f03"), 5))
			f.ok(f.removeTree(f.walkTo("/d"), "ck-7"))
			f.settleJobs()
			if a := f.attr(f.walkTo("/r/step-100/mp%2F00%2Ff03")); a.Stored == 0 || a.Size != 511 {
				t.Errorf("the step lost bytes with the directory: %v", a)
			}
			f.ok(f.do(&wire.MetaRequest{Op: &wire.MetaRequest_RemoveStep{RemoveStep: &wire.RemoveStep{Key: s.Key, Force: true}}}))
			f.ok(f.removeTree(f.root, "d"))
			f.settleJobs()
			f.ok(f.removeTree(f.root, "r"))
			f.settleJobs()
			f.check()
			if n, err := kvtx.ReadCounters(f.m.View(f.kv)); err != nil || n.Stripes != 0 || n.Inodes != 1 {
				t.Errorf("%d stripes and %d inodes are left (%v)", n.Stripes, n.Inodes, err)
			}
			f.replays()
		})
	}
}

// TestAdoptionFaults: whatever happens after any piece, the step is whole with the files of one
// moment, or there is none and the job says why.
func TestAdoptionFaults(t *testing.T) {
	sub := func(f *foreign) uint64 { return f.walkTo("/d/ck-7/mp/00") }
	faults := []struct {
		name string
		do   func(f *foreign, job uint64)
		says string // of the error of a job that fails; empty: the step is made in the end
		// changes: or the job fails and names the file
		changes bool
	}{
		{name: "nothing", do: func(*foreign, uint64) {}},
		{name: "the first file changes", changes: true, do: func(f *foreign, _ uint64) { f.fill(f.walkTo("/d/ck-7/large"), 1) }},
		{name: "the last file changes", changes: true, do: func(f *foreign, _ uint64) { f.fill(f.walkTo("/d/ck-7/mp/00/f65"), 1) }},
		{name: "a file appears", changes: true, do: func(f *foreign, _ uint64) { f.mkfile(sub(f), "a new one") }},
		{name: "a file goes", changes: true, do: func(f *foreign, _ uint64) { f.ok(f.remove(&wire.Remove{Parent: sub(f), Name: "f64"})) }},
		{name: "a file is replaced", changes: true, do: func(f *foreign, _ uint64) {
			f.ok(f.remove(&wire.Remove{Parent: sub(f), Name: "f00"}))
			f.fill(f.mkfile(sub(f), "f00"), 1)
		}},
		{name: "the directory goes", do: func(f *foreign, _ uint64) {
			f.ok(f.removeTree(f.walkTo("/d"), "ck-7"))
			f.settleJobs()
		}, says: "was removed"},
		{name: "a link appears", do: func(f *foreign, _ uint64) {
			f.ok(f.create(&wire.Create{Parent: sub(f), Name: "link", Type: wire.FileType_FILE_TYPE_SYMLINK, Target: "f00"}))
		}, says: "symbolic link"},
		{name: "it is canceled", do: func(f *foreign, job uint64) {
			f.ok(f.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: job}}}))
		}, says: "canceled"},
		{name: "the session ends", do: func(f *foreign, _ uint64) {
			f.ok(f.apply(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{f.id}}}}).Response)
			f.client = f.bench.open(nil)
		}},
		{name: "a launch takes the run over", do: func(f *foreign, _ uint64) {
			f.ok(f.do(&wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: f.root, Name: "r", Launch: "L2"}}}))
		}},
		{name: "the run goes", do: func(f *foreign, _ uint64) {
			f.removeTree(f.root, "r")
			f.settleJobs()
		}, says: "removed"},
	}
	runs := testseed.Sample(t, 10)
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			refused := 0
			for after := 0; ; after++ {
				if !runs() {
					continue
				}
				f := newForeign(t)
				job := f.adopting(100)
				over := false
				for n := 0; n < after && !over; n++ {
					over = !f.runLeaderJob(adoptJob, 60)
				}
				if over {
					if after < 8 || testseed.Long() && fault.changes && refused == 0 {
						t.Fatalf("an adoption took %d pieces, and was refused %d times: too few for this test", after, refused)
					}
					return
				}
				before := f.content(f.dir, "", map[string]string{})
				fault.do(f, job)
				f.check()
				for f.ended(job).State == wire.JobState_JOB_STATE_PENDING || f.ended(job).State == wire.JobState_JOB_STATE_RUNNING {
					f.pieces(60)
					f.check()
					f.judge("")
					f.later(31)
				}
				f.settleJobs()
				f.check()
				j := f.ended(job)
				switch {
				case fault.says != "" && (j.State == jobDone || !strings.Contains(j.Error, fault.says)):
					t.Fatalf("after %d pieces: the job ended %s: %q", after, j.State, j.Error)
				case fault.says != "" && len(f.steps(false)) > 0:
					t.Fatalf("after %d pieces: the step is there", after)
				case fault.changes && j.State == jobFailed && moraine.Kind(j.Failed) == moraine.Conflict:
					if !strings.Contains(j.Error, "changed meanwhile") || len(f.steps(false)) > 0 {
						t.Fatalf("after %d pieces: %q", after, j.Error)
					}
					refused++
				case fault.says == "" && j.State != jobDone:
					t.Fatalf("after %d pieces: the job ended %s: %q", after, j.State, j.Error)
				case fault.says == "":
					f.oneMoment(before)
				}
				f.replays()
			}
		})
	}
}

// content lists the files below a directory by their names in a step, with sizes and extents.
func (f *foreign) content(dir uint64, prefix string, into map[string]string) map[string]string {
	f.t.Helper()
	for _, e := range f.ok(f.read(&wire.MetaRequest{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: dir}}})).GetReadDir().GetEntries() {
		switch {
		case e.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY:
			f.content(e.Attr.Inode, prefix+e.Name+"%2F", into)
		case e.Name != "index.moraine":
			into[prefix+e.Name] = fmt.Sprint(e.Attr.Size, f.ok(f.extents(e.Attr.Inode, 0, 0)).GetExtents().GetExtents())
		}
	}
	return into
}

// oneMoment checks that the step has the files as they were before the fault, or as they are now.
func (f *foreign) oneMoment(before map[string]string) {
	f.t.Helper()
	have := f.content(f.walkTo("/r/latest"), "", map[string]string{})
	if !maps.Equal(have, before) && !maps.Equal(have, f.content(f.dir, "", map[string]string{})) {
		f.t.Errorf("the step has %d files that were never there together", len(have))
	}
}

// TestAnIncompleteDirectoryIsNotAdopted: the mover's verdict ends the step and the job, and the same
// step may be adopted later.
func TestAnIncompleteDirectoryIsNotAdopted(t *testing.T) {
	f := newForeign(t)
	job := f.adopting(100)
	f.pieces(1000)
	f.judge("file x is missing")
	f.check()
	if j := f.ended(job); j.State != jobFailed || !strings.Contains(j.Error, "file x is missing") || moraine.Kind(j.Failed) != moraine.Incomplete {
		t.Fatalf("the job ended %s: %q", j.State, j.Error)
	}
	if s := f.steps(true); len(s) != 1 || s[0].State != wire.StepState_STEP_STATE_ABORTED || !strings.Contains(s[0].Reason, "file x is missing") {
		t.Fatalf("the steps are %v", s)
	}
	if f.exists("/r/latest") {
		t.Error("latest names a step that was refused")
	}
	f.adopting(100) // before the first one's files are removed
	f.pieces(1000)
	f.check()
	f.judge("")
	f.settleJobs()
	f.check()
	f.holds("/r/step-100")
}

// TestACheckThatWasCanceledIsRepeated: the end of the job that checks an adopted step says nothing
// about its files. The adoption tries again, and the same files become the step.
func TestACheckThatWasCanceledIsRepeated(t *testing.T) {
	f := newForeign(t)
	job := f.adopting(100)
	f.pieces(1000)
	canceled := 0
	for _, j := range f.ok(f.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{}}})).GetJobs().GetJobs() {
		if j.Kind == stepJob {
			canceled++
			f.ok(f.as("a", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
		}
	}
	if canceled != 1 {
		t.Fatalf("%d checks were canceled", canceled)
	}
	f.check()
	for range 100 {
		f.later(1)
		f.pieces(1000)
		if f.judge("") {
			break
		}
	}
	f.settleJobs()
	f.check()
	if j := f.ended(job); j.State != jobDone {
		t.Fatalf("the job ended %s: %q", j.State, j.Error)
	}
	f.holds("/r/step-100")
	f.replays()
}

// TestASecondAdoption: two adopters of one directory share a job. What was adopted before is not
// adopted again, and other content is no step of the same number.
func TestASecondAdoption(t *testing.T) {
	f := newForeign(t)
	job := f.adopting(100)
	other := f.bench.open(nil)
	op := &wire.AdoptStep{Dir: f.dir, Parent: f.root, Name: "r", Step: 100, Format: dcp}
	if j := f.ok(other.do(&wire.MetaRequest{Op: &wire.MetaRequest_AdoptStep{AdoptStep: op}})).GetJobs().GetJobs()[0]; j.Id != job {
		t.Errorf("a second adopter has job %x", j.Id)
	}
	op.Step = 101
	if k := kind(other.do(&wire.MetaRequest{Op: &wire.MetaRequest_AdoptStep{AdoptStep: op}})); k != moraine.Busy.String() {
		t.Errorf("as another step: %s", k)
	}
	f.pieces(1000)
	f.judge("")
	again := func(step uint64, want moraine.Kind, says string) {
		t.Helper()
		job := f.adopting(step)
		f.pieces(1000)
		f.check()
		if j := f.ended(job); j.State != jobFailed || moraine.Kind(j.Failed) != want || !strings.Contains(j.Error, says) {
			t.Errorf("again: %s, %s: %q", j.State, moraine.Kind(j.Failed), j.Error)
		}
	}
	again(100, moraine.Exists, "attempt-1/step-100")
	f.fill(f.walkTo("/d/ck-7/mp/00/f65"), 1)
	again(100, moraine.Conflict, "mp/00/f65")
	f.ok(f.remove(&wire.Remove{Parent: f.walkTo("/d/ck-7/mp/00"), Name: "f65"}))
	again(100, moraine.Conflict, "fewer")
	if len(f.steps(false)) != 1 {
		t.Error("there is a second step")
	}
	f.adopting(102)
	f.pieces(1000)
	f.judge("")
	f.check()
	if len(f.steps(false)) != 2 {
		t.Error("the directory is no other step")
	}
}

// TestAdoptionFencesNobody: an adoption joins the attempt of live ranks, which go on, and a launch
// continues from an adopted step.
func TestAdoptionFencesNobody(t *testing.T) {
	f := newForeign(t)
	s := &ckptScript{bench: f.bench, sessions: map[string]*client{"a": f.client}}
	s.run("a", words("open r launch=L1"))
	s.run("a", words("begin step=1/50 rank=0 world=1"))
	f.adopting(100)
	f.pieces(1000)
	f.judge("")
	// The adopted step is none of the launch's own: a rank that is late is not refused.
	if got := s.run("a", words("fix attempt=1")); !strings.Contains(s.run("a", words("steps step=0/0")), "1/100:committed") || !strings.Contains(got, "not found") {
		t.Errorf("after the adoption, the first launch continues from %s", got)
	}
	if out := s.run("a", words("seal step=1/50 rank=0")); !strings.Contains(out, "sealed") {
		t.Errorf("the rank's seal: %s", out)
	}
	f.judge("")
	if got := s.run("a", words("steps step=0/0")); !strings.Contains(got, "1/50:committed 1/100:committed") {
		t.Errorf("the steps are %s", got)
	}
	if got := s.run("a", words("fix attempt=1")); !strings.Contains(got, "has committed step 50") {
		t.Errorf("after a step of its own, the launch continues from %s", got)
	}
	job := f.adopting(50)
	f.pieces(1000)
	if j := f.ended(job); j.State != jobFailed || moraine.Kind(j.Failed) != moraine.Exists || !strings.Contains(j.Error, "ranks saved it") {
		t.Errorf("over a step of ranks: %s %q", j.State, j.Error)
	}
	b := f.bench.open(nil)
	s.sessions["b"] = b
	s.run("b", words("open r launch=L2 takeover=yes"))
	if got := s.run("b", words("fix attempt=2")); !strings.Contains(got, "1/100 committed") {
		t.Errorf("the next launch continues from %s", got)
	}
	f.check()
}

// TestAdoptionIsRefused names what cannot be adopted.
func TestAdoptionIsRefused(t *testing.T) {
	f := newForeign(t)
	in := f.bench.open(func(op *wire.OpenSession) { op.Scope = "/d" })
	other := f.ok(f.create(&wire.Create{Parent: f.root, Name: "tenant", Type: wire.FileType_FILE_TYPE_DIRECTORY, Tenant: "other"})).GetEntry().GetAttr().GetInode()
	file := f.walkTo("/d/ck-7/large")
	for _, c := range []struct {
		what string
		by   *client
		op   *wire.AdoptStep
		want moraine.Kind
	}{
		{"no format", f.client, &wire.AdoptStep{Dir: f.dir, Parent: f.root, Name: "r"}, moraine.InvalidArgument},
		{"a file", f.client, &wire.AdoptStep{Dir: file, Parent: f.root, Name: "r", Format: dcp}, moraine.NotDirectory},
		{"into itself", f.client, &wire.AdoptStep{Dir: f.dir, Parent: f.dir, Name: "r", Format: dcp}, moraine.InvalidArgument},
		{"as itself", f.client, &wire.AdoptStep{Dir: f.dir, Parent: f.walkTo("/d"), Name: "ck-7", Format: dcp}, moraine.InvalidArgument},
		{"a run of another tenant", f.client, &wire.AdoptStep{Dir: f.dir, Parent: other, Name: "r", Format: dcp}, moraine.CrossTenant},
		{"a run out of the scope", in, &wire.AdoptStep{Dir: f.dir, Parent: f.root, Name: "r", Format: dcp}, moraine.NotFound},
		{"a directory out of the scope", in, &wire.AdoptStep{Dir: other, Parent: f.walkTo("/d"), Name: "r", Format: dcp}, moraine.NotFound},
	} {
		if got := kind(c.by.do(&wire.MetaRequest{Op: &wire.MetaRequest_AdoptStep{AdoptStep: c.op}})); got != c.want.String() {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	// In its scope a confined session adopts.
	job := f.ok(in.do(&wire.MetaRequest{Op: &wire.MetaRequest_AdoptStep{AdoptStep: &wire.AdoptStep{Dir: f.dir, Parent: f.walkTo("/d"), Name: "r", Format: dcp}}})).GetJobs().GetJobs()[0].Id
	f.pieces(1000)
	f.judge("")
	if j := f.ended(job); j.State != jobDone {
		t.Errorf("in the scope: %s %q", j.State, j.Error)
	}
	f.holds("/d/r/latest")
	f.check()
}

// TestAdoptionKeepsTheQuota: a step that exceeds the quota of its run is not made.
func TestAdoptionKeepsTheQuota(t *testing.T) {
	f := newForeign(t)
	r := f.mkdir(f.root, "r")
	used := f.usage(f.dir)
	f.ok(f.setQuota(r, used[0]-1, 0))
	job := f.adopting(1)
	f.pieces(1000)
	if j := f.ended(job); j.State != jobFailed || !strings.Contains(j.Error, "quota") {
		t.Errorf("the job ended %s: %q", j.State, j.Error)
	}
	f.ok(f.setQuota(r, used[0]+1<<20, 0))
	f.adopting(1)
	f.pieces(1000)
	f.judge("")
	f.holds("/r/latest")
	f.check()
}

// TestADirectoryCompletedAgain: if the last file is written again while a job adopts the directory,
// another job looks at it afterwards.
func TestADirectoryCompletedAgain(t *testing.T) {
	f := newForeign(t)
	f.ok(f.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: f.walkTo("/d"),
		Policy: &wire.Policy{Checkpoint: &wire.CheckpointPolicy{Format: dcp}}}}}))
	last := f.mkfile(f.dir, ".metadata")
	f.fill(last, 1)
	f.pieces(1000)
	f.later(11)
	f.pieces(1000) // the step is sealed
	f.fill(last, 1)
	f.judge("")
	f.check()
	if !f.exists("/d/step-7") {
		t.Fatal("the directory was not adopted")
	}
	if !f.runLeaderJob(adoptJob, 1000) {
		t.Error("no job looks at the directory once more")
	}
}

// TestNoRankJoinsAnAdoptedStep: ranks can neither begin nor seal parts of a step that a job makes of
// files. Otherwise they would replace its parts, or be replaced.
func TestNoRankJoinsAnAdoptedStep(t *testing.T) {
	f := newForeign(t)
	s := &ckptScript{bench: f.bench, sessions: map[string]*client{"a": f.client}}
	s.run("a", words("open r launch=L1"))
	f.adopting(100)
	joined := func() (begun bool) { // the step has a record once the job has looked at all files
		out := s.run("a", words("get step=1/100"))
		return !strings.HasPrefix(out, "not found")
	}
	refused := 0
	for f.runLeaderJob(adoptJob, 7) {
		if !joined() {
			continue
		}
		for _, line := range []string{"begin step=1/100 rank=0 world=2", "begin step=1/100 rank=1 world=3 bytes=10", "seal step=1/100 rank=0"} {
			if out := s.run("a", words(line)); !strings.Contains(out, "is adopted from files") {
				t.Fatalf("%s: %s", line, out)
			}
			refused++
		}
		f.check()
	}
	if refused == 0 {
		t.Error("the job never had a step in progress")
	}
	f.judge("")
	if got := s.run("a", words("steps step=0/0")); !strings.Contains(got, "1/100:committed") {
		t.Errorf("the steps are %s", got)
	}
	f.check()
}
