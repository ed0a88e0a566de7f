package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// flushedStep is a committed checkpoint of three ranks in a tier whose root is flushed on
// commit.
func flushedStep(t *testing.T, flush wire.FlushPolicy) (*tier, *ckptScript) {
	y := newTier(t)
	y.ok(y.setPolicy(y.c.root, &wire.Policy{Flush: flush}))
	s := &ckptScript{bench: y.bench, sessions: map[string]*client{"a": y.c}}
	for _, line := range strings.Split(strings.TrimSpace(`
a open r launch=L1
a begin step=1/10 rank=0 world=3
a begin step=1/10 rank=1 world=3
a begin step=1/10 rank=2 world=3
a seal step=1/10 rank=0
a seal step=1/10 rank=1
a seal step=1/10 rank=2
m lease
m commit step=1/10`), "\n") {
		who, rest, _ := strings.Cut(line, " ")
		if out := s.run(who, words(rest)); strings.Contains(out, ": ") {
			t.Fatalf("%s: %s", line, out)
		}
	}
	return y, s
}

// TestTheIndexOfAStepIsFlushedLast lets movers flush a checkpoint request by request, and lets one
// of them die at each point. The bucket has the index only after it has all parts.
func TestTheIndexOfAStepIsFlushedLast(t *testing.T) {
	runs := testseed.Sample(t, 4)
	for _, how := range []string{"none", "before", "after"} {
		for at := 0; at < 40; at++ {
			if how == "none" && at > 0 {
				break
			}
			if !runs() && how != "none" {
				continue
			}
			t.Run(fmt.Sprintf("%s %d", how, at), func(t *testing.T) {
				y, _ := flushedStep(t, onCommit)
				if how != "none" {
					y.crash = &crash{at: at, how: how}
				}
				ordered := func() (index bool) {
					parts := 0
					for key := range y.s.objects {
						index = index || strings.HasSuffix(key, "step-10/index")
						if strings.Contains(key, "step-10/part-") {
							parts++
						}
					}
					if index && parts < 3 {
						t.Fatalf("the index is in the bucket, and %d of 3 parts", parts)
					}
					return index
				}
				y.runTrees()
				movers := []*miniMover{y.mover("n1"), y.mover("n2")}
				for n := 0; n < 60 && !ordered(); n++ {
					movers[n%2].work()
					ordered()
					y.runTrees()
					y.tick(1000)
					if n%4 == 3 {
						y.tick(1000)
						for range 20 {
							y.tick(1000) // a lease of a mover that died ends
						}
					}
				}
				if !ordered() {
					t.Error("the index was not flushed")
				}
				y.check()
			})
		}
	}
}

// TestAnIndexIsNotFlushedAlone: no other job would flush the remaining files.
func TestAnIndexIsNotFlushedAlone(t *testing.T) {
	y, s := flushedStep(t, wire.FlushPolicy_FLUSH_POLICY_NEVER)
	walk := func(name string) uint64 {
		return y.c.walk("/r/attempt-1/step-10/" + name).GetWalk().GetAttr().GetInode()
	}
	queue := func(inodes ...uint64) []*wire.Job {
		return y.ok(y.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: wire.JobKind_JOB_KIND_FLUSH, Inodes: inodes}}})).GetJobs().GetJobs()
	}
	failed := queue(walk("index"))[0].Id
	for y.mover("n1").work() {
	}
	if len(y.s.objects) != 0 {
		t.Errorf("objects: %v", y.s.objects)
	}
	resp := y.ok(y.c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: failed, Ended: true}}}))
	if j := resp.GetJobs().GetJobs(); len(j) != 1 || j[0].State != wire.JobState_JOB_STATE_FAILED || !strings.Contains(j[0].Error, "part-0") {
		t.Errorf("the job: %v", j)
	}
	queue(walk("index"), walk("part-0"), walk("part-1"), walk("part-2"))
	for range 40 {
		y.mover("n1").work()
		y.tick(1000)
	}
	if len(y.s.objects) != 4 {
		t.Errorf("objects: %v", y.s.objects)
	}
	s.check()
}
