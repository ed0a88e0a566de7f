package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// TestGarbageModel runs clients, movers and devices against the state machine in random order. Job
// leases expire and their holders continue, deletions arrive late, devices leave and return, files
// die under repair. No chunk that a record names is ever deleted, and none is ever unexplained.
// After everything settles the devices have exactly the recorded chunks.
func TestGarbageModel(t *testing.T) {
	first, n := testseed.From(t, 0), testseed.Runs(t, 1, 8)
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed)
			for i := range 1200 {
				w.step()
				if i%100 == 0 {
					w.inspect()
				}
			}
			w.settle()
			w.replays()
			if w.balanced < 10 {
				t.Errorf("%d stripes were moved between devices", w.balanced)
			}
		})
	}
}

const graceMillis = 3000

// world is the content of the devices and the actors, next to the state machine.
type world struct {
	*bench
	rng     *rand.Rand
	c       *client
	hosts   int
	disks   map[uint32]map[moraine.ChunkID]moraine.LayoutVersion
	crcs    map[moraine.ChunkID]uint32
	files   []string
	named   int
	movers  []*mover
	deletes []*wire.Deletion // on their way
	// balanced counts the stripes that moves were planned for.
	balanced int
}

// mover works on one job. It may have lost the job long ago.
type mover struct {
	job   *wire.Job
	stage int
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{bench: newCluster(t, 9), rng: rand.New(rand.NewPCG(seed, 42)), hosts: 9,
		disks: map[uint32]map[moraine.ChunkID]moraine.LayoutVersion{}, crcs: map[moraine.ChunkID]uint32{}}
	for d := range uint32(9) {
		w.disks[d+1] = map[moraine.ChunkID]moraine.LayoutVersion{}
	}
	w.c = w.open(nil)
	return w
}

// put writes a chunk as a chunkserver does: a greater version replaces, a smaller one is refused.
func (w *world) put(device uint32, c moraine.ChunkID, v moraine.LayoutVersion) {
	if w.disks[device][c] < v {
		w.disks[device][c] = v
	}
}

func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 18:
		w.save()
	case n < 24:
		w.remove()
	case n < 28:
		w.abandon()
	case n < 37:
		w.plan()
	case n < 40:
		w.balance()
	case n < 52:
		w.lease()
	case n < 72:
		w.move()
	case n < 76:
		w.device()
	case n < 84:
		w.runAll(1 + w.rng.IntN(3))
	case n < 88:
		w.tick(uint64(w.rng.IntN(1000)))
	case n < 93:
		w.sendDeletions()
	case n < 97:
		w.carryOut(w.rng.IntN(8))
	default:
		w.report(uint32(w.rng.IntN(9)+1), 0)
	}
}

func (w *world) stateOf(device uint32) wire.DeviceState {
	all, err := fleet.Devices(w.m.View(w.kv))
	if err != nil {
		w.t.Fatal(err)
	}
	return all[device-1].State
}

func (w *world) in() []uint32 {
	var out []uint32
	for d := range uint32(9) {
		if w.stateOf(d+1) == wire.DeviceState_DEVICE_STATE_IN {
			out = append(out, d+1)
		}
	}
	return out
}

// save writes a file of one stripe: chunks are put under a grant, and then
// committed.
func (w *world) save() {
	first, devices := w.putStripe()
	if devices == nil {
		return
	}
	attr := w.c.ok(w.c.create(&wire.Create{Parent: w.c.root, Type: wire.FileType_FILE_TYPE_REGULAR, Unlinked: true})).GetEntry().GetAttr()
	s := stripe(first, 1<<20, devices...)
	for i, c := range s.Chunks {
		w.crcs[moraine.ChunkID{Stripe: moraine.StripeID(first), Index: uint8(i)}] = c.Crc
	}
	w.named++
	name := fmt.Sprint("f", w.named)
	w.c.ok(w.c.commit(&wire.Commit{Inode: attr.Inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{s}, Extents: []*wire.Extent{extent(0, 1<<20, first, 0)},
		Link: &wire.LinkTarget{Parent: w.c.root, Name: name}}))
	w.files = append(w.files, name)
	w.endGrant(first)
}

func (w *world) endGrant(first uint64) {
	w.c.ok(w.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}}))
}

func (w *world) putStripe() (uint64, []uint32) {
	devices := w.in()
	if len(devices) < 3 {
		return 0, nil
	}
	w.rng.Shuffle(len(devices), func(i, j int) { devices[i], devices[j] = devices[j], devices[i] })
	devices = devices[:3]
	if w.rng.IntN(4) == 0 {
		devices[1] = devices[0] // two chunks share a host
	}
	first := w.c.grant(0, 1)
	for i, d := range devices {
		w.put(d, moraine.ChunkID{Stripe: moraine.StripeID(first), Index: uint8(i)}, 1)
	}
	return first, devices
}

// abandon writes a stripe and never commits it.
func (w *world) abandon() {
	if first, devices := w.putStripe(); devices != nil {
		w.endGrant(first)
	}
}

func (w *world) remove() {
	if len(w.files) == 0 {
		return
	}
	n := w.rng.IntN(len(w.files))
	w.c.ok(w.c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: w.c.root, Name: w.files[n]}}}))
	w.files = slices.Delete(w.files, n, n+1)
}

// plan makes a repair job for a part of the queue, as the leader does.
func (w *world) plan() {
	tasks, _, err := fleet.RepairQueue(w.m.View(w.kv), fleet.RepairCursor{}, 1+w.rng.IntN(4), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REPAIR}
	for _, task := range tasks {
		if in := w.targets(task); len(in) > 0 {
			job.Repairs = append(job.Repairs, &wire.RepairTask{Stripe: task.Stripe, Intents: in})
		}
	}
	if len(job.Repairs) > 0 {
		w.ok(w.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}).Response)
	}
}

// balance makes a job that moves chunks to fill devices evenly, as the leader does. It picks any
// stripes, also invalid ones.
func (w *world) balance() {
	job := &wire.Job{Kind: wire.JobKind_JOB_KIND_REBALANCE}
	for range 1 + w.rng.IntN(4) {
		chunks, err := fleet.ExpectedChunks(w.m.View(w.kv), moraine.DeviceID(w.rng.IntN(9)+1), 0, 0, 64)
		if err != nil {
			w.t.Fatal(err)
		}
		if devices := w.in(); len(chunks) > 0 && len(devices) > 0 {
			c := chunks[w.rng.IntN(len(chunks))].Chunk
			job.Repairs = append(job.Repairs, &wire.RepairTask{Stripe: &wire.Stripe{Id: uint64(c.Stripe)}, Intents: []*wire.Intent{
				{Stripe: uint64(c.Stripe), Index: uint32(c.Index), Device: devices[w.rng.IntN(len(devices))]}}})
		}
	}
	w.ok(w.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{job}}}}).Response)
	for _, in := range job.Repairs {
		if queued, err := fleet.Queued(w.m.View(w.kv), moraine.StripeID(in.Stripe.Id)); err == nil && queued {
			w.balanced++
		}
	}
}

// targets chooses new places for the chunks of a stripe that need one.
func (w *world) targets(task *wire.RepairTask) []*wire.Intent {
	used := map[uint32]bool{}
	var fix []int
	for i, c := range task.Stripe.Chunks {
		if (task.Missing|task.Moving)&(1<<i) != 0 || used[c.Device] {
			fix = append(fix, i)
			continue
		}
		used[c.Device] = true
	}
	var out []*wire.Intent
	for _, d := range w.in() {
		if len(fix) > 0 && !used[d] {
			out = append(out, &wire.Intent{Stripe: task.Stripe.Id, Index: uint32(fix[0]), Device: d})
			fix = fix[1:]
		}
	}
	return out
}

func (w *world) lease() {
	resp := w.ok(w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{
		Host: "m", Kinds: []wire.JobKind{wire.JobKind_JOB_KIND_REPAIR, wire.JobKind_JOB_KIND_REBALANCE}, Max: 2}}}))
	for _, j := range resp.GetJobs().GetJobs() {
		w.movers = append(w.movers, &mover{job: j})
	}
}

// move lets one mover do its next step, sometimes twice, or abandon the job.
func (w *world) move() {
	if len(w.movers) == 0 {
		return
	}
	n := w.rng.IntN(len(w.movers))
	mv := w.movers[n]
	if w.rng.IntN(15) == 0 {
		w.movers = slices.Delete(w.movers, n, n+1) // the mover died: its lease expires
		for range 16 {
			w.tick(1000)
		}
		return
	}
	if again := w.rng.IntN(5) == 0; w.advance(mv) && !again {
		mv.stage++
	}
	if mv.stage > 3 {
		w.movers = slices.Delete(w.movers, n, n+1)
	}
}

func (w *world) intents(mv *mover) []*wire.Intent {
	var out []*wire.Intent
	for _, task := range mv.job.Repairs {
		out = append(out, task.Intents...)
	}
	return out
}

// advance does the mover's present step and returns whether to continue.
func (w *world) advance(mv *mover) bool {
	j := mv.job
	switch mv.stage {
	case 0: // the holder chooses new targets for some intents
		for _, task := range j.Repairs {
			if w.rng.IntN(3) > 0 && len(task.Intents) > 0 {
				continue
			}
			in := w.targets(task)
			resp := w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_BeginRepair{BeginRepair: &wire.BeginRepair{
				Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: in}}})
			w.fencedOrOK(resp, moraine.Stale)
			task.Intents = resp.GetBeginRepair().GetIntents()
		}
	case 1:
		for _, in := range w.intents(mv) {
			w.put(in.Device, moraine.ChunkID{Stripe: moraine.StripeID(in.Stripe), Index: uint8(in.Index)}, moraine.LayoutVersion(in.Version))
		}
	case 2:
		w.fencedOrOK(w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
			Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: w.intents(mv)}}}))
	case 3:
		if w.rng.IntN(3) == 0 {
			w.ok(w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_EndIntents{EndIntents: &wire.EndIntents{Intents: w.intents(mv)}}}))
		}
		failed := ""
		if w.rng.IntN(3) == 0 {
			failed = "a chunk could not be put"
		}
		w.fencedOrOK(w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{
			Id: j.Id, LeaseEpoch: j.LeaseEpoch, Error: failed}}}))
	}
	return true
}

// fencedOrOK accepts a refusal because another mover holds the job by now.
func (w *world) fencedOrOK(resp *wire.MetaResponse, also ...moraine.Kind) {
	w.t.Helper()
	e := resp.GetError()
	if e == nil || slices.Contains(append(also, moraine.Fenced, moraine.NotFound), moraine.Kind(e.Kind)) {
		return
	}
	w.ok(resp)
}

// device takes a device out, drains it or brings it back; or its host becomes silent or returns.
func (w *world) device() {
	d := uint32(w.rng.IntN(9) + 1)
	if w.rng.IntN(4) == 0 {
		if now := w.stateOf(d); now == drainingState || now == inState && len(w.in()) > 6 {
			w.fallsSilent(d)
		} else {
			w.isHeard(d)
		}
		return
	}
	to := wire.DeviceState_DEVICE_STATE_IN
	if w.stateOf(d) == to && len(w.in()) > 6 {
		to = wire.DeviceState_DEVICE_STATE_OUT
		if w.rng.IntN(3) == 0 {
			to = wire.DeviceState_DEVICE_STATE_DRAINING
		}
	}
	if to == wire.DeviceState_DEVICE_STATE_IN && w.rng.IntN(2) == 0 {
		w.registerHost(fmt.Sprint("n", d), 1) // a reboot
		return
	}
	w.ok(w.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{Device: d, State: to}}}))
}

// runAll runs pieces of the leader's own jobs.
func (w *world) runAll(pieces int) (left int) {
	jobs, err := jobs.PendingJobs(w.m.View(w.kv), []wire.JobKind{wire.JobKind_JOB_KIND_SCAN_DEVICE, wire.JobKind_JOB_KIND_DROP_TABLES}, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, j := range jobs[:min(len(jobs), pieces)] {
		w.ok(w.apply(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: j.Id, Limit: 12}}}).Response)
	}
	return len(jobs)
}

func (w *world) now() uint64 {
	n, err := kvtx.ClusterTime(w.m.View(w.kv))
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// sendDeletions sends the deletions of chunks dead for the grace, as the leader does. They may
// arrive much later.
func (w *world) sendDeletions() {
	if w.now() < graceMillis {
		return
	}
	for d := range uint32(9) {
		if w.stateOf(d+1) == wire.DeviceState_DEVICE_STATE_OUT {
			continue
		}
		dels, err := fleet.Tombstones(w.m.View(w.kv), moraine.DeviceID(d+1), w.now()-graceMillis, 16)
		if err == nil {
			var kept []*wire.Deletion
			kept, err = fleet.KeptTombstones(w.m.View(w.kv), moraine.DeviceID(d+1), w.now()-graceMillis, 0, 0, 16)
			dels = append(dels, kept...)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		w.deletes = append(w.deletes, dels...)
	}
}

// carryOut delivers some deletions in any order and acknowledges them.
func (w *world) carryOut(n int) {
	for range n {
		if len(w.deletes) == 0 {
			return
		}
		at := w.rng.IntN(len(w.deletes))
		d := w.deletes[at]
		w.deletes = slices.Delete(w.deletes, at, at+1)
		c := moraine.ChunkID{Stripe: moraine.StripeID(d.Stripe), Index: uint8(d.Index)}
		if v, ok := w.disks[d.Device][c]; ok && v < moraine.LayoutVersion(d.Below) {
			delete(w.disks[d.Device], c)
			w.mayDelete(d.Device, c)
		}
		if w.rng.IntN(3) > 0 {
			w.ok(w.as(fmt.Sprint("n", d.Device), "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{
				DeletedChunks: &wire.DeletedChunks{Deleted: []*wire.Deletion{d}}}}))
		}
	}
}

// mayDelete fails the test if a record names the deleted chunk.
func (w *world) mayDelete(device uint32, c moraine.ChunkID) {
	w.t.Helper()
	s, err := fleet.StripeByID(w.m.View(w.kv), c.Stripe)
	if err != nil {
		w.t.Fatal(err)
	}
	if s != nil && s.Chunks[c.Index].Device == moraine.DeviceID(device) {
		w.t.Fatalf("chunk %s of device %d was deleted and its record claims it", c, device)
	}
}

// report makes a device report all its chunks and returns how many of them are not live.
func (w *world) report(device uint32, extra int) (notLive int) {
	if w.stateOf(device) == wire.DeviceState_DEVICE_STATE_OUT || w.now() < graceMillis {
		return 0
	}
	started := w.index
	cmd := &statepb.CompleteReport{Device: device, PassStarted: started}
	for c, v := range w.disks[device] {
		verdict, err := fleet.ClassifyChunk(w.m.View(w.kv), moraine.DeviceID(device), &wire.ChunkReport{Stripe: uint64(c.Stripe), Index: uint32(c.Index),
			Version: uint32(v), Crc: w.crcs[c]}, w.now()-graceMillis)
		if err != nil {
			w.t.Fatal(err)
		}
		switch verdict.Fate {
		case fleet.Unknown, fleet.Damaged:
			w.t.Fatalf("chunk %s version %d of device %d is unexplained (%d)", c, v, device, verdict.Fate)
		case fleet.Dead:
			w.deletes = append(w.deletes, &wire.Deletion{Device: device, Stripe: uint64(c.Stripe), Index: uint32(c.Index), Below: uint32(verdict.Below)})
		}
		if verdict.Fate != fleet.Live {
			notLive++
		}
		if u := verdict.Unsettled; u != 0 && u <= cmd.PassStarted {
			cmd.PassStarted = u - 1
		}
	}
	w.ok(w.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: cmd}}).Response)
	return notLive
}

// inspect checks the state, and that every recorded chunk exists.
func (w *world) inspect() {
	w.t.Helper()
	w.check()
	for d := range uint32(9) {
		held, err := fleet.ExpectedChunks(w.m.View(w.kv), moraine.DeviceID(d+1), 0, 0, 1<<20)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range held {
			if _, ok := w.disks[d+1][e.Chunk]; !ok {
				w.t.Fatalf("device %d must hold %s and does not", d+1, e.Chunk)
			}
		}
	}
}

// settle brings all devices back and lets all work end. Then nothing needs repair, nothing is dead,
// and the devices have only recorded chunks.
func (w *world) settle() {
	w.t.Helper()
	w.movers = nil
	for d := range uint32(9) {
		w.registerHost(fmt.Sprint("n", d+1), 1)
		w.ok(w.as("admin", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
			Device: d + 1, State: wire.DeviceState_DEVICE_STATE_IN}}}))
	}
	for range 400 {
		w.tick(1000)
		w.runAll(100)
		w.plan()
		w.lease()
		for _, mv := range w.movers {
			j := mv.job
			for _, in := range w.intents(mv) {
				w.put(in.Device, moraine.ChunkID{Stripe: moraine.StripeID(in.Stripe), Index: uint8(in.Index)}, moraine.LayoutVersion(in.Version))
			}
			w.ok(w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
				Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: w.intents(mv)}}}))
			w.ok(w.as("m", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}}))
		}
		w.movers = nil
		w.sendDeletions()
		w.carryOut(len(w.deletes))
	}
	w.inspect()
	for pass := range 3 {
		for d := range uint32(9) {
			if n := w.report(d+1, 0); n > 0 && pass == 2 {
				w.t.Errorf("device %d still holds %d chunks that are not live", d+1, n)
			}
		}
		for range graceMillis/1000 + 1 {
			w.tick(1000)
		}
		w.carryOut(len(w.deletes))
	}
	w.check()
	c, err := kvtx.ReadCounters(w.m.View(w.kv))
	if err != nil || c.RepairQueued != 0 || c.LostStripes != 0 {
		w.t.Errorf("repairs are left: %+v %v", c, err)
	}
	w.sendDeletions()
	w.carryOut(len(w.deletes))
	ended := 0
	for _, p := range w.kv.Pairs() {
		if k := p.Key[2]; k == 0x21 || k == 0x31 { // ended grants, ended intents
			ended++
		}
	}
	if ended > 0 {
		w.t.Errorf("%d ended grants and intents are still remembered", ended)
	}
}
