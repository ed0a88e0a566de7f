package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// stayers is a run whose steps are in memory.
type stayers struct {
	*risers
	dirs map[string]uint64 // directories of steps: a removed one names none
}

func (s *stayers) step(name string) *wire.Step {
	s.t.Helper()
	return s.ok(s.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetStep{GetStep: &wire.GetStep{Key: s.script.key(map[string]string{"step": name})}}})).GetStep().GetStep()
}

// verdicts says what a device is to do with the chunks of steps: stay, write or gone.
func (s *stayers) verdicts(names ...string) string {
	s.t.Helper()
	op := &wire.ListMemory{Device: 1}
	for _, name := range names {
		op.DeferredFor = append(op.DeferredFor, s.dir(name))
	}
	resp, err := s.m.Read(s.store(), &statepb.Caller{Node: "n1", Role: "chunkserver", Scope: "/"},
		&wire.MetaRequest{Partition: s.partition, Op: &wire.MetaRequest_ListMemory{ListMemory: op}})
	if err != nil {
		s.t.Fatal(err)
	}
	page := s.ok(resp).GetMemory()
	var out []string
	for n, dir := range op.DeferredFor {
		said := "stay"
		if slices.Contains(page.Write, dir) {
			said = "write"
		}
		if slices.Contains(page.Gone, dir) {
			said = "gone"
		}
		out = append(out, names[n]+":"+said)
	}
	return strings.Join(out, " ")
}

func (s *stayers) dir(name string) uint64 {
	if d := s.step(name).GetDir(); d != 0 {
		s.dirs[name] = d
	}
	return s.dirs[name]
}

func (s *stayers) want(what, want string, names ...string) {
	s.t.Helper()
	if got := s.verdicts(names...); got != want {
		s.t.Fatalf("%s: %s, want %s", what, got, want)
	}
}

// commit ends a step that rank 0 of 1 has begun.
func (s *stayers) commit(name string) {
	s.t.Helper()
	s.must("a", "seal step="+name+" rank=0 digest=x")
	s.must("m", "lease")
	s.must("m", "commit step="+name)
}

// TestThePolicyLeavesStepsInMemory: with every 10th step to nvme and every 25th to the bucket, the others stay in
// memory from their begin on, whatever the policy says later. A rank that wants nvme, a request, a pin and a clone
// let a step rise, and the answer to a device names it. Nothing else does.
func TestThePolicyLeavesStepsInMemory(t *testing.T) {
	s := &stayers{newRisers(t, 5), map[string]uint64{}}
	s.must("a", "begin step=1/1 rank=0 world=1")
	s.commit("1/1")
	s.must("a", "policy nvme=every:10 object=every:25 memory=last:4")
	for _, n := range []int{10, 11, 12, 13, 14, 15, 25} {
		name := fmt.Sprintf("1/%d", n)
		s.must("a", "begin step="+name+" rank=0 world=1")
		if stays := s.step(name).StaysInMemory; stays != (n%10 != 0 && n%25 != 0) {
			t.Fatalf("step %s: stays in memory: %v", name, stays)
		}
	}
	all := []string{"1/1", "1/10", "1/11", "1/12", "1/13", "1/14", "1/15", "1/25"}
	s.want("begun", "1/1:write 1/10:write 1/11:stay 1/12:stay 1/13:stay 1/14:stay 1/15:stay 1/25:write", all...)
	s.must("a", "policy nvme=every:1")
	for _, name := range all[1:] {
		s.commit(name)
	}
	s.must("a", "mark step=1/11 as=healthy tag=best")
	s.want("committed, under another policy", "1/11:stay 1/12:stay 1/13:stay 1/14:stay 1/15:stay", all[2:7]...)

	s.must("a", "mark step=1/11 rise=yes")
	s.must("a", "mark step=1/12 pin=yes")
	src := s.c.walkTo("/r/attempt-1/step-13/part-0")
	s.ok(s.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: &wire.Clone{Inode: s.c.mkfile(s.c.root, "clone"),
		Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: src}}}}}))
	s.must("a", "rm step=1/14")
	s.want("raised and removed", "1/11:write 1/12:write 1/13:write 1/14:gone 1/15:stay", all[2:7]...)

	s.must("a", "policy nvme=every:10")
	s.must("a", "begin step=1/31 rank=0 world=2")
	s.must("a", "begin step=1/32 rank=0 world=2")
	s.must("a", "begin step=1/33 rank=0 world=1")
	s.want("begun", "1/31:stay 1/32:stay 1/33:stay", "1/31", "1/32", "1/33")
	s.must("a", "begin step=1/31 rank=1 world=2 level=nvme")
	s.must("a", "mark step=1/32 rise=yes")
	s.script.run("a", words("abort step=1/33 reason=x"))
	s.want("asked before the commit, and aborted", "1/31:write 1/32:write 1/33:gone", "1/31", "1/32", "1/33")
	if level := moraine.Level(s.step("1/15").Level); level != moraine.Memory {
		t.Fatalf("step 15 is at %s", level)
	}
	s.check()
}
