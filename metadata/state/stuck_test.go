package state_test

import (
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// failTier leases a job as n1 and reports that it failed. It returns the job, and nil without one.
func (y *tier) failTier(kind moraine.Kind, text string) *wire.Job {
	y.t.Helper()
	leased := y.leaseAs("n1", 1)
	if len(leased) == 0 {
		return nil
	}
	j := leased[0]
	y.ok(y.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
		Id: j.Id, LeaseEpoch: j.LeaseEpoch, Error: text, Kind: uint32(kind)}}}))
	y.check()
	return j
}

// jobByID returns a job, also one that has ended.
func (y *tier) jobByID(id uint64) *wire.Job {
	y.t.Helper()
	return y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: id, Ended: true}}})).GetJobs().GetJobs()[0]
}

// stuck is the number of stuck jobs, as the status has it.
func (y *tier) stuck() uint64 {
	y.t.Helper()
	n, err := kvtx.ReadCounters(y.m.View(y.kv))
	if err != nil {
		y.t.Fatal(err)
	}
	if s := y.status(); s.Stuck != n.StuckMoves || (s.StuckJob != 0) != (s.Stuck > 0) {
		y.t.Errorf("the tier's status has %d stuck jobs, the counters %d", s.Stuck, n.StuckMoves)
	}
	return n.StuckMoves
}

// A flush whose key has an object of others is stuck at once: the status counts it and says why. It
// is tried ever less often, at last every ten minutes, and at once when somebody requests it. It
// ends well once the object is gone.
func TestABlockedFlushIsShownAndBacksOff(t *testing.T) {
	y := newTier(t)
	f := y.c.mkfile(y.c.root, "f")
	y.write(f, 100)
	y.queue(flushJob, f)
	const text = "an object that this cluster did not write is at s3://b/f"
	tries := 0
	for range 3600 { // an hour
		if y.failTier(moraine.Exists, text) != nil {
			tries++
			if n := y.stuck(); n != 1 {
				t.Fatalf("after try %d, %d jobs are stuck", tries, n)
			}
		}
		y.wait(1)
	}
	if tries < 10 || tries > 17 {
		t.Errorf("%d tries in an hour", tries)
	}
	if s := y.status(); !strings.Contains(s.StuckError, "did not write") || !strings.Contains(s.StuckSubject, "f") || s.QueuedFlushes != 1 {
		t.Errorf("the status is %v", s)
	}
	if len(y.leaseAs("n1", 1)) != 0 {
		t.Fatal("it is tried again at once")
	}
	y.queue(flushJob, f) // somebody requests it
	y.check()
	if n := y.stuck(); n != 0 {
		t.Errorf("%d jobs are stuck that nobody has tried", n)
	}
	if y.failTier(moraine.Exists, text) == nil {
		t.Fatal("it is not tried when somebody requests it")
	}
	if n := y.stuck(); n != 1 {
		t.Errorf("%d jobs are stuck", n)
	}
	y.queue(flushJob, f)
	y.drain()
	if n := y.stuck(); n != 0 || y.c.attr(f).Level != uint32(moraine.Object) {
		t.Errorf("%d jobs are stuck, and the file is at level %d", n, y.c.attr(f).Level)
	}
	y.check()
	y.sound(f)
}

// The flush of a directory ends and names a file that is blocked. The flush of that file goes on by
// itself.
func TestABlockedFlushDoesNotHoldUpItsTree(t *testing.T) {
	y := newTier(t)
	dir := y.c.mkdir(y.c.root, "d")
	f, g := y.c.mkfile(dir, "f"), y.c.mkfile(dir, "g")
	y.write(f, 100)
	y.write(g, 100)
	tree := y.queue(flushJob, dir)[0]
	y.runTrees()
	blocked := y.failTier(moraine.Exists, "an object that this cluster did not write is there")
	y.mover("n1").work() // the other file
	j := y.jobByID(tree.Id)
	if j.State != wire.JobState_JOB_STATE_FAILED || !strings.Contains(j.Error, "did not write") {
		t.Errorf("the flush of the directory is %v: %s", j.State, j.Error)
	}
	if y.stuck() != 1 || y.jobByID(blocked.Id).State != wire.JobState_JOB_STATE_PENDING {
		t.Errorf("the blocked flush is %v", y.jobByID(blocked.Id).State)
	}
	y.check()
}

// A job that fails for another reason is stuck after some tries, and is tried every 30 s, as a bucket
// may be back at any time. A canceled one and one whose file is removed are not stuck.
func TestAFailingJobIsStuckAfterSomeTries(t *testing.T) {
	y := newTier(t)
	f := y.c.mkfile(y.c.root, "f")
	y.write(f, 100)
	y.queue(flushJob, f)
	const stuckTries = 8
	var j *wire.Job
	for tries := 0; tries < stuckTries; {
		if got := y.failTier(moraine.IOError, "no answer"); got != nil {
			j = got
			tries++
			if want := tries / stuckTries; y.stuck() != uint64(want) {
				t.Fatalf("after try %d, %d jobs are stuck", tries, y.stuck())
			}
		}
		y.wait(1)
	}
	y.wait(31)
	if y.failTier(moraine.IOError, "no answer") == nil {
		t.Error("it is not tried again within 30 s")
	}
	y.ok(y.as("ops", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: j.Id}}}))
	if n := y.stuck(); n != 0 {
		t.Errorf("%d jobs are stuck after the cancellation", n)
	}
	y.check()
}
