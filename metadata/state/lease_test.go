package state_test

import (
	"testing"

	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// repairOf makes a repair job of a stripe's first chunk and returns it.
func (b *bench) repairOf(stripe uint64, target uint32) uint64 {
	b.t.Helper()
	resp := b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{{
		Kind: wire.JobKind_JOB_KIND_REPAIR, Repairs: []*wire.RepairTask{{Stripe: &wire.Stripe{Id: stripe},
			Intents: []*wire.Intent{{Stripe: stripe, Device: target}}}}}}}}}).Response)
	return resp.GetJobs().GetJobs()[0].Id
}

func (b *bench) leaseRepair(node string) *wire.Job {
	b.t.Helper()
	jobs := b.ok(b.as(node, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: node, Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR}, Max: 1}}})).GetJobs().GetJobs()
	if len(jobs) != 1 {
		b.t.Fatalf("%d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

// Only the holder can use a job lease: a request of another node changes nothing although it names
// the epoch, which is easy to guess.
func TestLeaseIsItsHoldersAlone(t *testing.T) {
	b := newCluster(t, 5)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	id := c.grant(f, 1)
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_QueueRepairs{QueueRepairs: &statepb.QueueRepairs{
		Items: []*statepb.RepairItem{{Stripe: id, Device: 1, Version: 1, Reason: "missing"}}}}}).Response)
	b.repairOf(id, 4)
	job := b.leaseRepair("n2")
	intents := job.Repairs[0].Intents
	requests := map[string]*wire.MetaRequest{
		"renew":       {Op: &wire.MetaRequest_RenewJob{RenewJob: &wire.RenewJob{Id: job.Id, LeaseEpoch: job.LeaseEpoch}}},
		"begin":       {Op: &wire.MetaRequest_BeginRepair{BeginRepair: &wire.BeginRepair{Job: job.Id, LeaseEpoch: job.LeaseEpoch, Intents: intents}}},
		"commit":      {Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{Job: job.Id, LeaseEpoch: job.LeaseEpoch, Intents: intents}}},
		"end intents": {Op: &wire.MetaRequest_EndIntents{EndIntents: &wire.EndIntents{Intents: intents}}},
		"finish":      {Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: job.Id, LeaseEpoch: job.LeaseEpoch}}},
		"fail":        {Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: job.Id, LeaseEpoch: job.LeaseEpoch, Error: "x", Final: true}}},
	}
	for what, req := range requests {
		if have := kind(b.as("n3", "chunkserver", req)); have != "permission denied" {
			t.Errorf("%s by another node: %s, want permission denied", what, have)
		}
	}
	for _, what := range []string{"renew", "begin", "commit", "finish", "finish"} {
		if have := kind(b.as("n2", "chunkserver", requests[what])); have != "ok" {
			t.Errorf("%s by the holder: %s", what, have)
		}
	}
	if s := c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: f}}}).GetExtents().Stripes[0]; s.Chunks[0].Device != 4 {
		t.Errorf("the repaired chunk is on device %d, want 4", s.Chunks[0].Device)
	}
	b.check()
}

// A backlog of one kind leaves the other kinds their share of job leases, both for movers with one
// free slot and within one answer.
func TestKindsShareTheLeases(t *testing.T) {
	y := newTier(t)
	var flushes []uint64
	for range 100 {
		f := y.c.mkfile(y.c.root, "f"+string(rune('A'+len(flushes)%26))+string(rune('A'+len(flushes)/26)))
		y.write(f, 10)
		flushes = append(flushes, f)
	}
	cold := y.c.mkfile(y.c.root, "cold")
	y.write(cold, 10)
	y.queue(flushJob, cold)
	y.quiet()
	y.queue(flushJob, flushes...)
	y.queue(evictJob, cold)

	kinds := map[wire.JobKind]int{}
	for range 20 { // a fair draw of two kinds misses one of them 20 times in a row once in a million
		for _, j := range y.leaseAs("n1", 1) {
			kinds[j.Kind]++
		}
	}
	if kinds[evictJob] != 1 || kinds[flushJob] != 19 {
		t.Errorf("20 leases of one job gave %v, want the eviction and 19 flushes", kinds)
	}
	y.wait(16) // their leases end
	y.tick(1000)
	for range 5 {
		for _, j := range y.leaseAs("n2", record.MaxLeaseJobs) {
			y.ok(y.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RenewJob{RenewJob: &wire.RenewJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}}))
		}
	}
	if left := y.leaseAs("n3", 1); len(left) != 0 {
		t.Errorf("%d jobs were never leased", len(left))
	}
}

// One answer has jobs of each kind that has work.
func TestOneAnswerHasEveryKind(t *testing.T) {
	y := newTier(t)
	var files []uint64
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		f := y.c.mkfile(y.c.root, name)
		y.write(f, 10)
		files = append(files, f)
	}
	y.queue(flushJob, files[0])
	y.quiet()
	y.queue(flushJob, files[1:]...)
	y.queue(evictJob, files[0])
	kinds := map[wire.JobKind]int{}
	for _, j := range y.leaseAs("n1", 2) {
		kinds[j.Kind]++
	}
	if kinds[flushJob] != 1 || kinds[evictJob] != 1 {
		t.Errorf("two leases gave %v, want one of each kind", kinds)
	}
}
