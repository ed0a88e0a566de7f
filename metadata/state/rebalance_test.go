package state_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

func (b *bench) steer(role string, op *wire.SetRebalance) *wire.MetaResponse {
	return b.as("a1", role, &wire.MetaRequest{Op: &wire.MetaRequest_SetRebalance{SetRebalance: op}})
}

func (b *bench) settings() record.RebalanceSettings {
	b.t.Helper()
	s, err := fleet.RebalanceSettings(b.m.View(b.kv))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// TestRebalanceSettings: an omitted setting stays, an invalid one is refused, and setting the same
// value again changes nothing.
func TestRebalanceSettings(t *testing.T) {
	b := newCluster(t, 3)
	if have, want := b.settings(), (record.RebalanceSettings{BandPermille: 50, BytesPerSecond: 64 << 20}); have != want {
		t.Fatalf("%+v", have)
	}
	for range 2 {
		b.ok(b.steer("admin", &wire.SetRebalance{Paused: proto.Bool(true)}))
		b.ok(b.steer("admin", &wire.SetRebalance{BandPermille: proto.Uint32(20)}))
	}
	b.ok(b.steer("admin", &wire.SetRebalance{BytesPerSecond: proto.Uint64(1 << 30)}))
	if have, want := b.settings(), (record.RebalanceSettings{Paused: true, BandPermille: 20, BytesPerSecond: 1 << 30}); have != want {
		t.Fatalf("%+v", have)
	}
	b.wants(b.steer("admin", &wire.SetRebalance{BandPermille: proto.Uint32(1)}), moraine.InvalidArgument)
	b.wants(b.steer("admin", &wire.SetRebalance{BytesPerSecond: proto.Uint64(1)}), moraine.InvalidArgument)
	b.ok(b.steer("admin", &wire.SetRebalance{Paused: proto.Bool(false)}))
	if b.settings().Paused {
		t.Fatal("it is not paused any more")
	}
	b.keepLog("v1-rebalance-settings")
}

// balancing is a stripe on devices 1, 2 and 3 and a job that moves a chunk from 1 to 4.
type balancing struct {
	*bench
	stripe uint64
	job    *wire.Job
	move   *wire.Intent
}

func newBalancing(t *testing.T) *balancing {
	b := &balancing{bench: newCluster(t, 5)}
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	b.stripe = c.grant(f, 1)
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(b.stripe, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, b.stripe, 0)}}))
	if jobs := b.create(); len(jobs) != 1 {
		t.Fatalf("%d jobs", len(jobs))
	}
	if jobs := b.create(); len(jobs) != 0 {
		t.Fatal("a stripe is moved by one job at a time")
	}
	b.lease("n2")
	return b
}

func (b *balancing) create() []*wire.Job {
	job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REBALANCE, Repairs: []*wire.RepairTask{
		{Stripe: &wire.Stripe{Id: b.stripe}, Intents: []*wire.Intent{{Stripe: b.stripe, Device: 4}}}}}
	job.Repairs = append(job.Repairs, job.Repairs[0]) // named twice
	return b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}).Response).GetJobs().GetJobs()
}

func (b *balancing) lease(host string) {
	b.t.Helper()
	jobs := b.ok(b.as(host, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: host, Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REBALANCE}, Max: 1}}})).GetJobs().GetJobs()
	if len(jobs) != 1 || len(jobs[0].Repairs) != 1 || len(jobs[0].Repairs[0].Intents) != 1 || jobs[0].Repairs[0].Reason != "balance" {
		b.t.Fatalf("leased %v", jobs)
	}
	b.job, b.move = jobs[0], jobs[0].Repairs[0].Intents[0]
}

func (b *balancing) commitMove(host string) *wire.MetaResponse {
	return b.as(host, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
		Job: b.job.Id, LeaseEpoch: b.job.LeaseEpoch, Intents: []*wire.Intent{b.move}}}})
}

func (b *balancing) finish(host, why string) *wire.MetaResponse {
	return b.as(host, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
		Id: b.job.Id, LeaseEpoch: b.job.LeaseEpoch, Error: why}}})
}

func (b *balancing) device0() moraine.DeviceID {
	b.t.Helper()
	s, err := fleet.StripeByID(b.m.View(b.kv), moraine.StripeID(b.stripe))
	if err != nil || s == nil {
		b.t.Fatal(s, err)
	}
	return s.Chunks[0].Device
}

// counts are the stripes that wait for repair, that repairs work on, and that are being moved.
func (b *balancing) counts() [3]uint64 {
	b.t.Helper()
	n, err := kvtx.ReadCounters(b.m.View(b.kv))
	running, err2 := fleet.RepairRunning(b.m.View(b.kv))
	moved, err3 := fleet.Rebalancing(b.m.View(b.kv))
	if err != nil || err2 != nil || err3 != nil {
		b.t.Fatal(err, err2, err3)
	}
	return [3]uint64{n.RepairQueued, running, moved}
}

func (b *balancing) holds(counts [3]uint64, on moraine.DeviceID) {
	b.t.Helper()
	if have := b.counts(); have != counts {
		b.t.Fatalf("queued, repaired, moved: %v, want %v", have, counts)
	}
	if have := b.device0(); have != on {
		b.t.Fatalf("the chunk is on device %d, want %d", have, on)
	}
	b.check()
}

func (b *balancing) setDevice(d uint32, to wire.DeviceState) {
	b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: d, State: to}}}))
	b.settleScans()
}

// TestRebalanceMovesAChunk covers the life of a move: each step may be retried, and the stripe
// never counts as needing repair.
func TestRebalanceMovesAChunk(t *testing.T) {
	b := newBalancing(t)
	b.holds([3]uint64{0, 0, 1}, 1)
	for range 2 {
		if r := b.ok(b.commitMove("n2")).GetCommitRepair(); len(r.Stale) != 0 {
			t.Fatalf("%v", r)
		}
	}
	b.holds([3]uint64{0, 0, 1}, 4)
	if bytes, chunks, all, err := fleet.DeadBytes(b.m.View(b.kv), 1, 10); err != nil || chunks != 1 || !all || bytes == 0 {
		t.Fatalf("%d bytes of %d chunks are dead on device 1, %t, %v", bytes, chunks, all, err)
	}
	for range 2 {
		b.ok(b.finish("n2", ""))
	}
	b.holds([3]uint64{0, 0, 0}, 4)
	b.keepLog("v1-rebalance")
}

// TestRebalanceGivesWay covers each event that ends a move before it is published. A stripe that
// then needs repair is queued at once, and the move can no longer be published. The chunk always
// stays where it was.
func TestRebalanceGivesWay(t *testing.T) {
	const outState, drainingState = wire.DeviceState_DEVICE_STATE_OUT, wire.DeviceState_DEVICE_STATE_DRAINING
	for name, tt := range map[string]struct {
		do     func(b *balancing)
		counts [3]uint64
	}{
		"the mover failed": {func(b *balancing) { b.ok(b.finish("n2", "no room")) }, [3]uint64{}},
		"canceled": {func(b *balancing) {
			b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_CancelJob{CancelJob: &wire.CancelJob{Id: b.job.Id}}}))
		}, [3]uint64{}},
		"the lease went to another, which failed": {func(b *balancing) {
			mine := b.job
			for range 16 {
				b.tick(1000)
			}
			b.lease("n3")
			b.ok(b.finish("n3", "no room"))
			b.job = mine
		}, [3]uint64{}},
		"a device of the stripe is out":         {func(b *balancing) { b.setDevice(2, outState) }, [3]uint64{1, 0, 0}},
		"the device that gives is out":          {func(b *balancing) { b.setDevice(1, outState) }, [3]uint64{1, 0, 0}},
		"the device that gives is drained":      {func(b *balancing) { b.setDevice(1, drainingState) }, [3]uint64{1, 0, 0}},
		"the device that is to take is out":     {func(b *balancing) { b.setDevice(4, outState) }, [3]uint64{0, 0, 1}},
		"the device that is to take is drained": {func(b *balancing) { b.setDevice(4, drainingState) }, [3]uint64{0, 0, 1}},
		"a chunk is corrupt": {func(b *balancing) {
			b.ok(b.as("c1", "client", &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{
				Chunks: []*wire.BadChunk{{Stripe: b.stripe, Index: 1, Device: 2, Kind: uint32(moraine.Corrupt)}}}}}))
		}, [3]uint64{1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBalancing(t)
			tt.do(b)
			b.holds(tt.counts, 1)
			resp := b.commitMove("n2")
			if resp.GetError() == nil && len(resp.GetCommitRepair().GetStale()) != 1 {
				t.Fatalf("published: %v", resp)
			}
			b.holds(tt.counts, 1)
			if resp := b.finish("n2", "stale"); resp.GetError() != nil {
				b.wants(resp, moraine.Fenced)
			}
			tt.counts[2] = 0
			b.holds(tt.counts, 1)
		})
	}
}

// TestMovedStripeDoesNotWaitForRepair: a stripe that a job moves is not listed in the repair queue
// until one of its chunks is known to be bad.
func TestMovedStripeDoesNotWaitForRepair(t *testing.T) {
	b := newBalancing(t)
	holds := func(want bool) {
		t.Helper()
		s, queued, err := fleet.StripeOnRecord(b.m.View(b.kv), moraine.StripeID(b.stripe))
		if err != nil || s == nil || queued != want {
			t.Fatalf("queued %t, %v", queued, err)
		}
	}
	holds(false)
	b.ok(b.as("c1", "client", &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{
		Chunks: []*wire.BadChunk{{Stripe: b.stripe, Index: 1, Device: 2, Kind: uint32(moraine.Corrupt)}}}}}))
	holds(true)
}
