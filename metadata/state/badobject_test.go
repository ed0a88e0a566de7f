package state_test

import (
	"strings"
	"testing"

	"github.com/morainefs/moraine/metadata/state/ckpt"
	"github.com/morainefs/moraine/metadata/state/statepb"
	statetier "github.com/morainefs/moraine/metadata/state/tier"
	"github.com/morainefs/moraine/transport/wire"
)

// report reports what a host found of an object.
func (y *tier) report(o *wire.Object, w *wire.ObjectCheck) {
	y.t.Helper()
	w.Object = o
	y.ok(y.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_ReportObjects{ReportObjects: &wire.ReportObjects{Checks: []*wire.ObjectCheck{w}}}}))
	y.check()
}

func (y *tier) bad() []*wire.BadObject {
	y.t.Helper()
	return y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListBadObjects{ListBadObjects: &wire.ListBadObjects{}}})).GetBadObjects().GetObjects()
}

// counted returns how many objects that alone have bytes of files are bad, and how many other ones.
func (y *tier) counted() [2]int {
	y.t.Helper()
	lost, bad, err := statetier.CountBadObjects(y.m.View(y.kv), 100)
	if err != nil {
		y.t.Fatal(err)
	}
	return [2]int{lost, bad}
}

func (y *tier) objectOf(f uint64) *wire.Object {
	y.t.Helper()
	return y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{Object: y.c.attr(f).Object}}})).GetObject().GetObject()
}

const (
	goodState    = wire.ObjectState_OBJECT_STATE_GOOD
	missingState = wire.ObjectState_OBJECT_STATE_MISSING
	differsState = wire.ObjectState_OBJECT_STATE_DIFFERS
	corruptState = wire.ObjectState_OBJECT_STATE_CORRUPT
)

// An object that differs from its record is bad until a host reports that the same fault is gone,
// or until the object goes with its file.
func TestBadObjects(t *testing.T) {
	y := newTier(t)
	f := y.c.mkfile(y.c.root, "f")
	y.write(f, 100)
	y.queue(flushJob, f)
	y.drain()
	o := y.objectOf(f)
	want := func(what string, lost, bad int) {
		t.Helper()
		if got := y.counted(); got != [2]int{lost, bad} {
			t.Fatalf("%s: %v", what, got)
		}
		if got := len(y.bad()); got != lost+bad {
			t.Fatalf("%s: %d are listed", what, got)
		}
	}

	y.report(o, &wire.ObjectCheck{State: missingState})
	want("the copy of a file is gone", 0, 1)
	if r := y.queue(evictJob, f)[0]; r.State != wire.JobState_JOB_STATE_FAILED {
		t.Errorf("eviction to an object that is gone: %v", r)
	}
	y.queue(flushJob, f)
	y.drain()
	want("it is flushed again", 0, 0)
	y.evictAll([]uint64{f})

	o = y.objectOf(f)
	other := &wire.Object{Id: o.Id, Bucket: o.Bucket, Key: o.Key, Version: o.Version, Etag: "another"}
	y.report(other, &wire.ObjectCheck{State: missingState})
	want("a report of another object at the key", 0, 0)
	y.report(o, &wire.ObjectCheck{State: wire.ObjectState_OBJECT_STATE_UNKNOWN})
	want("no answer", 0, 0)
	for _, state := range []wire.ObjectState{missingState, differsState} {
		y.report(o, &wire.ObjectCheck{State: state})
		want("an evicted file", 1, 0)
		if b := y.bad()[0]; b.Path != "f" || b.State != state || !b.Evicted || b.Others || len(b.Ranges) != 1 || b.Ranges[0].Length != 100 {
			t.Errorf("listed: %v", b)
		}
	}
	y.report(o, &wire.ObjectCheck{State: goodState})
	want("it is there again", 0, 0)

	y.report(o, &wire.ObjectCheck{State: corruptState, Offset: 3})
	want("of no piece", 0, 0)
	y.report(o, &wire.ObjectCheck{State: corruptState, Offset: 4})
	want("other bytes", 1, 0)
	y.report(o, &wire.ObjectCheck{State: goodState})
	y.report(o, &wire.ObjectCheck{State: goodState, Read: true, Offset: 8})
	want("nobody has read the piece", 1, 0)
	y.report(o, &wire.ObjectCheck{State: goodState, Read: true, Offset: 4})
	want("the piece is good", 0, 0)

	y.report(o, &wire.ObjectCheck{State: missingState})
	y.replace(f, 50)
	want("the file is overwritten", 0, 0)
	y.quiet()
	g := y.c.mkfile(y.c.root, "g")
	y.write(g, 100)
	y.queue(flushJob, g)
	y.drain()
	y.evictAll([]uint64{g})
	y.report(y.objectOf(g), &wire.ObjectCheck{State: missingState})
	y.unlink("g")
	want("the file is removed", 0, 0)
	y.quiet()
	want("and its object", 0, 0)
}

// A checkpoint whose object is gone is not latest; it is committed again when the object is back.
func TestAStepWithoutItsObjectIsLost(t *testing.T) {
	y, s := flushedStep(t, onCommit)
	y.runTrees()
	for n := 0; n < 60; n++ {
		y.mover("n1").work()
		y.runTrees()
		y.wait(2)
	}
	part := y.c.walk("/r/attempt-1/step-10/part-0").GetWalk().GetAttr()
	y.evictAll([]uint64{part.Inode})
	judge := func() {
		t.Helper()
		look := &ckpt.StepLook{}
		if err := ckpt.FindStepLoss(y.m.View(y.kv), look, 1000); err != nil || !look.Done {
			t.Fatal(err)
		}
		if op := look.Judge(look.Changes); op != nil {
			y.ok(y.apply(&statepb.Command{Op: &statepb.Command_JudgeSteps{JudgeSteps: op}}).Response)
		}
		y.check()
	}
	o := y.objectOf(part.Inode)
	y.report(o, &wire.ObjectCheck{State: missingState})
	judge()
	if out := s.run("a", words("get step=1/10")); !strings.Contains(out, "lost") {
		t.Errorf("the step: %s", out)
	}
	y.report(o, &wire.ObjectCheck{State: goodState})
	judge()
	if out := s.run("a", words("get step=1/10")); strings.Contains(out, "lost") {
		t.Errorf("the step: %s", out)
	}
}
