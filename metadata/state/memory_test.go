package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// inRAM is a stripe of copies in the memory of devices, under their present boot epochs.
func (b *bench) inRAM(id, length uint64, devices ...uint32) *wire.Stripe {
	s := stripe(id, length, devices...)
	for _, c := range s.Chunks {
		c.Level, c.Epoch = uint32(moraine.Memory), b.epochOf(c.Device)
	}
	return s
}

func (b *bench) epochOf(device uint32) uint64 {
	b.t.Helper()
	return b.hostOf(fmt.Sprintf("n%d", device)).Devices[0].Epoch
}

// save writes a file whose bytes are in memory, with one stripe for each list of devices.
func (c *client) save(name string, stripes ...[]uint32) uint64 {
	c.t.Helper()
	f := c.mkfile(c.root, name)
	c.lay(f, stripes...)
	return f
}

func (c *client) lay(f uint64, stripes ...[]uint32) {
	c.t.Helper()
	first := c.grant(f, uint32(len(stripes)))
	op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE}
	for n, devices := range stripes {
		id := first + uint64(n)
		op.Stripes = append(op.Stripes, c.inRAM(id, 10, devices...))
		op.Extents = append(op.Extents, extent(uint64(10*n), 10, id, 0))
	}
	c.ok(c.commit(op))
}

// listed are the chunks about which the leader asks a device's server.
func (b *bench) listed(device uint32) []*wire.SettledChunk {
	b.t.Helper()
	var out []*wire.SettledChunk
	op := &wire.ListMemory{Device: device, Limit: 3}
	for {
		resp, err := b.m.Read(b.store(), &statepb.Caller{Node: "n1", Role: "chunkserver", Scope: "/"}, &wire.MetaRequest{Partition: b.partition, Op: &wire.MetaRequest_ListMemory{ListMemory: op}})
		if err != nil {
			b.t.Fatal(err)
		}
		page := b.ok(resp).GetMemory()
		out = append(out, page.Chunks...)
		if !page.More {
			return out
		}
		last := out[len(out)-1]
		op.After, op.AfterStripe, op.AfterIndex = page.At, last.Stripe, last.Index
	}
}

// tell reports where the chunks of a device are; gone selects those that are lost.
func (b *bench) tell(device uint32, epoch uint64, gone func(*wire.SettledChunk) bool) *wire.MetaResponse {
	b.t.Helper()
	chunks := b.listed(device)
	for _, c := range chunks {
		c.Version, c.Crc, c.Gone = 1, uint32(c.Stripe)*31+c.Index, gone(c)
	}
	return b.as(fmt.Sprintf("n%d", device), "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_SettleChunks{SettleChunks: &wire.SettleChunks{
		Device: device, Epoch: epoch, Chunks: chunks}}})
}

func allHere(*wire.SettledChunk) bool { return false }
func allGone(*wire.SettledChunk) bool { return true }

// raise repeats the leader's RaiseLevels until nothing changes.
func (b *bench) raise() {
	b.t.Helper()
	for {
		ids, _, err := content.Raisable(b.m.View(b.store()), 0, 1000, 2)
		if err != nil {
			b.t.Fatal(err)
		}
		op := &statepb.RaiseLevels{}
		for _, id := range ids {
			op.Inodes = append(op.Inodes, uint64(id))
		}
		if len(ids) == 0 {
			op.Lost = b.findLost()
		}
		if len(ids)+len(op.Lost) == 0 {
			return
		}
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RaiseLevels{RaiseLevels: op}}).Response)
	}
}

// findLost returns what the leader finds lost in one pass over all files, in small pieces.
func (b *bench) findLost() (out []*statepb.FilePlace) {
	b.t.Helper()
	for next := (content.FilePlace{}); ; {
		var lost []content.FilePlace
		var err error
		if lost, next, err = content.FindLost(b.m.View(b.store()), next, 70); err != nil {
			b.t.Fatal(err)
		}
		for _, at := range lost {
			out = append(out, &statepb.FilePlace{Inode: uint64(at.Inode), Offset: uint64(at.Offset)})
		}
		if next == (content.FilePlace{}) || len(out) > 0 {
			return out
		}
	}
}

func (c *client) wantLevel(inode uint64, want moraine.Level) {
	c.t.Helper()
	c.raise()
	if have := moraine.Level(c.attr(inode).Level); have != want {
		c.t.Fatalf("inode %x is at level %s, want %s", inode, have, want)
	}
}

// lostFiles lists the lost ranges, as path: [offset length]...
func (c *client) lostFiles() []string {
	c.t.Helper()
	var out []string
	for _, f := range c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{}}})).GetLost().GetFiles() {
		s := f.Path
		for _, r := range f.Ranges {
			s += fmt.Sprintf(" [%d %d]", r.Offset, r.Length)
		}
		out = append(out, s)
	}
	return out
}

// TestMemoryLevels: a file has the level of its least safe byte and rises when the devices have its
// chunks. A clone rises independently.
func TestMemoryLevels(t *testing.T) {
	b := newCluster(t, 4)
	c := b.open(nil)
	f := c.save("f", []uint32{1, 2, 3}, []uint32{2, 3, 4})
	g := c.mkfile(c.root, "g")
	c.ok(c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: f, Length: 10}}}))
	c.wantLevel(f, moraine.Memory)
	c.wantLevel(g, moraine.Memory)
	for device := uint32(1); device <= 3; device++ {
		for range 2 { // the first answer was lost
			b.ok(b.tell(device, 1, allHere))
		}
		b.check()
	}
	c.wantLevel(g, moraine.NVMe)
	c.wantLevel(f, moraine.Memory)
	b.wants(b.tell(4, 2, allHere), moraine.Stale)
	b.wants(b.tell(4, 0, allHere), moraine.Stale)
	b.ok(b.tell(4, 1, allHere))
	c.wantLevel(f, moraine.NVMe)
	for _, s := range c.ok(c.extents(f, 0, 10)).GetExtents().Stripes {
		for _, ch := range s.Chunks {
			if ch.Level != uint32(moraine.NVMe) || ch.Epoch != 0 {
				t.Fatalf("a chunk of a file at nvme is %v", ch)
			}
		}
	}
	if n := len(b.listed(1)) + len(b.listed(2)) + len(b.listed(3)) + len(b.listed(4)); n != 0 {
		t.Fatalf("%d chunks are listed as in memory", n)
	}
	// One byte in memory lowers the whole file to level memory until that byte is on its device
	// too.
	id := c.grant(f, 1)
	c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{b.inRAM(id, 10, 1, 2)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	c.wantLevel(f, moraine.Memory)
	b.ok(b.tell(1, 1, allHere))
	b.ok(b.tell(2, 1, allHere))
	c.wantLevel(f, moraine.NVMe)
	b.check()
	b.replays()
	b.keepLog("v1-memory")
}

// Bytes in the memory of a device that is out are lost if too few other chunks are left, because
// its server will not report them. They are no longer lost when the device returns.
func TestMemoryOfADeviceOutOfServiceIsLost(t *testing.T) {
	b := newCluster(t, 4)
	c := b.open(nil)
	f := c.save("f", []uint32{1, 2}, []uint32{2, 3})
	b.ok(b.tell(2, 1, allGone))
	c.wantLevel(f, moraine.Memory)
	c.setState(1, wire.DeviceState_DEVICE_STATE_OUT)
	c.wantLevel(f, 0)
	if got := fmt.Sprint(c.lostFiles()); got != "[f [0 10]]" {
		t.Fatalf("lost: %s", got)
	}
	c.setState(1, wire.DeviceState_DEVICE_STATE_IN)
	c.wantLevel(f, moraine.Memory)
	b.ok(b.tell(1, 1, allHere))
	b.ok(b.tell(3, 1, allHere))
	b.check()
	b.replays()
}

// TestOneHostsMemoryProtectsNothing: copies in the memory of one process count as one copy, on
// however many devices.
func TestOneHostsMemoryProtectsNothing(t *testing.T) {
	b := newBench(t)
	b.registerHost("n1", 2)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	id := c.grant(f, 2)
	for n, level := range []moraine.Level{moraine.Memory, moraine.NVMe} {
		s := stripe(id+uint64(n), 10, 1, 2)
		for _, ch := range s.Chunks {
			ch.Level, ch.Epoch = uint32(level), 1
		}
		r := c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Stripes: []*wire.Stripe{s}, Extents: []*wire.Extent{extent(0, 10, s.Id, 0)}})).GetCommit()
		if r.Protects != uint32(n) {
			t.Errorf("at level %s it protects from the loss of %d", level, r.Protects)
		}
	}
}

// TestMemoryFaults: how each loss of memory affects files, stripes and the repair queue.
func TestMemoryFaults(t *testing.T) {
	for _, row := range []struct {
		name   string
		gone   []uint32 // devices whose hosts lost their memory before the chunks reached the device
		level  moraine.Level
		lost   []string
		queued uint64
	}{
		{"all had it on their devices", nil, moraine.NVMe, nil, 0},
		{"one of three", []uint32{1}, moraine.Memory, nil, 1},
		{"two of three", []uint32{1, 2}, moraine.Memory, nil, 2},
		{"all three of the first stripe", []uint32{1, 2, 3}, moraine.Memory, []string{"f [0 10]"}, 2},
		{"all of both", []uint32{1, 2, 3, 4}, moraine.Memory, []string{"f [0 20]"}, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newCluster(t, 6)
			c := b.open(nil)
			f := c.save("f", []uint32{1, 2, 3}, []uint32{2, 3, 4})
			for device := uint32(1); device <= 4; device++ {
				epoch := uint64(1)
				if slices.Contains(row.gone, device) {
					b.registerHost(fmt.Sprintf("n%d", device), 1)
					// A report from an earlier boot no longer counts.
					b.wants(b.tell(device, epoch, allHere), moraine.Stale)
					epoch = b.epochOf(device)
				}
				for range 2 { // the first answer was lost
					b.ok(b.tell(device, epoch, func(*wire.SettledChunk) bool { return slices.Contains(row.gone, device) }))
				}
				b.raise()
				b.check()
			}
			want := row.level
			if row.lost != nil {
				want = 0
			}
			c.wantLevel(f, want)
			if have := c.lostFiles(); !slices.Equal(have, row.lost) {
				t.Errorf("lost: %q, want %q", have, row.lost)
			}
			n, err := kvtx.ReadCounters(b.m.View(b.kv))
			if err != nil || n.RepairQueued != row.queued {
				t.Errorf("%d stripes wait for repair, want %d (%v)", n.RepairQueued, row.queued, err)
			}
			if row.lost == nil && row.gone != nil {
				b.healMemory()
				c.wantLevel(f, moraine.NVMe)
			}
			if row.lost != nil {
				// Rewriting the file makes it whole.
				c.lay(f, []uint32{4, 5, 6})
				c.wantLevel(f, moraine.Memory)
				for device := uint32(4); device <= 6; device++ {
					b.ok(b.tell(device, b.epochOf(device), allHere))
				}
				c.wantLevel(f, moraine.NVMe)
				if have := c.lostFiles(); have != nil {
					t.Errorf("lost: %q", have)
				}
			}
			b.check()
			b.replays()
			if len(row.gone) == 3 {
				b.keepLog("v1-memory-lost")
			}
		})
	}
}

// healMemory completes all waiting repairs on devices 5 and 6.
func (b *bench) healMemory() {
	b.t.Helper()
	for {
		tasks, _, err := fleet.RepairQueue(b.m.View(b.kv), fleet.RepairCursor{}, 1, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(tasks) == 0 {
			return
		}
		var intents []*wire.Intent
		free := []uint32{5, 6}
		for i := range tasks[0].Stripe.Chunks {
			if tasks[0].Missing&(1<<i) != 0 {
				intents = append(intents, &wire.Intent{Stripe: tasks[0].Stripe.Id, Index: uint32(i), Device: free[0]})
				free = free[1:]
			}
		}
		tasks[0].Intents = intents
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CreateJobs{CreateJobs: &statepb.CreateJobs{Jobs: []*wire.Job{
			{Kind: wire.JobKind_JOB_KIND_REPAIR, Repairs: tasks}}}}}).Response)
		j := b.leaseRepair("n1")
		b.ok(b.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
			Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: j.Repairs[0].Intents}}}))
		b.ok(b.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}}))
	}
}

// TestRandomMemory makes saves, appends, clones, concatenations, flushes, evictions, staging to
// memory, removals, reboots with and without loss, and partial settling, in random order. After the
// leader's inspection no file is at nvme with a chunk that is not, no file with enough chunks is
// lost, and no other file counts as safe.
func TestRandomMemory(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 3, 60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			y := newTierOf(t, 5)
			b, c := y.bench, y.c
			y.stagedIn = b.inRAM
			rng := rand.New(rand.NewPCG(seed, 1))
			files, names := []uint64{c.save("first", []uint32{1, 2})}, map[uint64]string{}
			pick := func() uint64 { return files[rng.IntN(len(files))] }
			some := func() []uint32 {
				all := []uint32{1, 2, 3, 4, 5}
				rng.Shuffle(5, func(i, j int) { all[i], all[j] = all[j], all[i] })
				return all[:1+rng.IntN(3)]
			}
			for step := range 150 {
				name := fmt.Sprint("f", step)
				device := uint32(1 + rng.IntN(5))
				switch rng.IntN(15) {
				case 0, 1:
					var stripes [][]uint32
					for range 1 + rng.IntN(5) {
						stripes = append(stripes, some())
					}
					files = append(files, c.save(name, stripes...))
					names[files[len(files)-1]] = name
				case 2:
					g := c.mkfile(c.root, name)
					c.ok(c.clone(&wire.Clone{Inode: g, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Ranges: []*wire.CloneRange{{Inode: pick()}}}))
					files, names[g] = append(files, g), name
				case 3:
					if n := rng.IntN(len(files)); n > 0 {
						c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: names[files[n]]}}}))
						files = slices.Delete(files, n, n+1)
					}
				case 4:
					b.registerHost(fmt.Sprintf("n%d", device), 1)
				case 5:
					c.lay(pick(), some())
				case 6:
					b.raise()
					b.check()
				case 7, 8:
					y.queue([]wire.JobKind{flushJob, flushJob, evictJob, stageJob}[rng.IntN(4)], pick())
					for y.mover("n1").work() {
					}
				case 9:
					y.write(pick(), 10)
				case 10:
					f := pick()
					c.ok(c.clone(&wire.Clone{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Ranges: []*wire.CloneRange{{Inode: pick(), Length: 1}}}))
				case 11:
					g := c.unnamed()
					c.ok(c.concat(&wire.Concat{Inode: g, Ranges: []*wire.CloneRange{{Inode: pick()}, {Inode: pick()}}, Link: &wire.LinkTarget{Parent: c.root, Name: name}}))
					files, names[g] = append(files, g), name
				default:
					b.ok(b.tell(device, b.epochOf(device), func(*wire.SettledChunk) bool { return rng.IntN(6) == 0 }))
				}
			}
			for device := uint32(1); device <= 5; device++ {
				b.ok(b.tell(device, b.epochOf(device), allHere))
			}
			b.raise()
			b.check()
			for _, f := range files {
				c.holdLevel(f)
			}
			b.replays()
		})
	}
}

// holdLevel compares a file's level with its chunks, all of which are settled.
func (c *client) holdLevel(f uint64) {
	c.t.Helper()
	if a := c.attr(f); a.Clean {
		if a.Level != uint32(moraine.Object) {
			c.t.Errorf("file %x is in an object, and at %s", f, moraine.Level(a.Level))
		}
		return
	}
	want := moraine.NVMe
	for _, s := range c.stripesOf(f) {
		void := 0
		for _, ch := range s.Chunks {
			if ch.Level == uint32(moraine.Memory) {
				void++
			}
		}
		if void > 0 {
			want = min(want, moraine.Memory)
		}
		if len(s.Chunks)-void < int(s.Scheme.K) {
			want = 0
			break
		}
	}
	have := moraine.Level(c.attr(f).Level)
	if have != want {
		c.t.Errorf("file %x is at %s, want %s", f, have, want)
	}
}

// stripesOf returns the stripes that a file names.
func (c *client) stripesOf(f uint64) (out []*wire.Stripe) {
	c.t.Helper()
	for from := uint64(0); ; {
		r := c.ok(c.extents(f, from, 1000)).GetExtents()
		out = append(out, r.Stripes...)
		if len(r.Extents) == 0 {
			return out
		}
		last := r.Extents[len(r.Extents)-1]
		from = last.Offset + last.Length
	}
}

// TestLostFilesOutsideAScopeAreNotListed: a session confined to a directory sees the lost files
// below it by their paths there. Of other files it sees neither names nor their number.
func TestLostFilesOutsideAScopeAreNotListed(t *testing.T) {
	b := newCluster(t, 4)
	c := b.open(nil)
	a, foreign := c.mkdir(c.root, "a"), c.mkdir(c.root, "b")
	for i, dir := range []uint64{foreign, a, foreign} {
		name := fmt.Sprintf("f%d", i)
		c.save(name, []uint32{1, 2}, []uint32{2, 3})
		c.ok(c.rename(&wire.Rename{Parent: c.root, Name: name, NewParent: dir, NewName: name}))
	}
	b.ok(b.tell(2, 1, allGone))
	c.setState(1, wire.DeviceState_DEVICE_STATE_OUT)
	c.raise()
	if got := fmt.Sprint(c.lostFiles()); got != "[b/f0 [0 10] a/f1 [0 10] b/f2 [0 10]]" {
		t.Fatalf("lost: %s", got)
	}
	confined := b.open(func(op *wire.OpenSession) { op.Scope = "/a" })
	if got := fmt.Sprint(confined.lostFiles()); got != "[f1 [0 10]]" {
		t.Errorf("of /a: %s", got)
	}
	for after := range uint64(3) {
		list := &wire.ListLost{Limit: 1, After: a - 1 + after}
		if r := confined.ok(confined.read(&wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: list}})).GetLost(); r.More || len(r.Files) > 1 {
			t.Errorf("after %x: %v", list.After, r)
		}
	}
}
