package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// TestRetirementKeepsChunks: a device can be retired when no stripe has a chunk on it. With
// accept_loss a device that is out can be retired with its chunks; one that is in or draining
// cannot.
func TestRetirementKeepsChunks(t *testing.T) {
	ways := map[string]struct {
		into func(b *bench)
		out  bool
	}{
		"in":             {func(*bench) {}, false},
		"draining":       {func(b *bench) { b.ok(b.setDevice(&wire.SetDeviceState{Device: 1, State: drainingState})) }, false},
		"slow":           {func(b *bench) { b.leads(1, drainingState, "it is slow", true) }, false},
		"out by hand":    {func(b *bench) { b.setOut(1) }, true},
		"out, it failed": {func(b *bench) { b.leads(1, outState, "its server took it out of service", false) }, true},
		"out, it lied":   {func(b *bench) { b.leads(1, outState, "it lies", true) }, true},
		"out, silent":    {func(b *bench) { b.fallsSilent(1) }, true},
		"drained, then out": {func(b *bench) {
			b.ok(b.setDevice(&wire.SetDeviceState{Device: 1, State: drainingState}))
			b.fallsSilent(1)
		}, true},
	}
	for name, way := range ways {
		for _, holds := range []bool{false, true} {
			for _, acceptLoss := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/holds=%v/acceptLoss=%v", name, holds, acceptLoss), func(t *testing.T) {
					asks := []func(b *bench) *wire.MetaResponse{func(b *bench) *wire.MetaResponse {
						return b.setDevice(&wire.SetDeviceState{Device: 1, State: retiredState, AcceptLoss: acceptLoss})
					}, func(b *bench) *wire.MetaResponse {
						return b.setHost(&wire.SetHostState{Host: "n1", State: retiredState, AcceptLoss: acceptLoss})
					}}
					for _, ask := range asks {
						b := newCluster(t, 7)
						if holds {
							b.open(nil).save("f", []uint32{1, 2, 3, 4, 5, 6})
						}
						way.into(b)
						before := b.hostOf("n1").Devices[0]
						resp := ask(b)
						if !holds || way.out && acceptLoss {
							b.ok(resp)
							b.wantDevice("n1", retiredState, b.hostOf("n1").Devices[0].Reason)
							continue
						}
						b.wants(resp, moraine.Conflict)
						if way.out != strings.Contains(resp.GetError().GetText(), "--accept-loss") {
							t.Fatalf("it says %q", resp.GetError().GetText())
						}
						b.wantDevice("n1", before.State, before.Reason)
						b.settleScans()
						b.check()
					}
				})
			}
		}
	}
}

// TestEmptyDeviceIsRetired: once the chunks of a device are rebuilt, or their stripes are gone, it
// can be retired without accept_loss. Chunks lost with accept_loss are rebuilt too, from the
// others.
func TestEmptyDeviceIsRetired(t *testing.T) {
	b := newCluster(t, 6)
	c := b.open(nil)
	var ids [2]uint64
	for n, name := range []string{"f", "g"} {
		f := c.mkfile(c.root, name)
		ids[n] = c.grant(f, 1)
		b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
			Stripes: []*wire.Stripe{stripe(ids[n], 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, ids[n], 0)}}))
	}
	retire := func(device uint32, acceptLoss bool) *wire.MetaResponse {
		return b.setDevice(&wire.SetDeviceState{Device: device, State: retiredState, AcceptLoss: acceptLoss})
	}
	b.leads(1, outState, "its server took it out of service", false)
	b.settleScans()
	b.wants(retire(1, false), moraine.Conflict)
	b.repairOf(ids[0], 4)
	j := b.leaseRepair("n2")
	b.ok(b.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
		Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: j.Repairs[0].Intents}}}))
	b.ok(b.as("n2", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}}))
	b.wants(retire(1, false), moraine.Conflict)
	b.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: c.root, Name: "g"}}}))
	for range 2 {
		b.ok(retire(1, false))
	}
	b.setOut(2)
	b.wants(retire(2, false), moraine.Conflict)
	for range 2 {
		b.ok(retire(2, true))
	}
	b.settleScans()
	tasks, _, err := fleet.RepairQueue(b.m.View(b.kv), fleet.RepairCursor{}, 2, 0)
	if err != nil || len(tasks) != 1 || tasks[0].Stripe.Id != ids[0] || tasks[0].Missing != 2 {
		t.Fatalf("the queue has %v, %v", tasks, err)
	}
	b.check()
	b.replays()
	b.keepLog("v1-accept-loss")
}

// TestDrainIsUndone: the undo of a host's drain covers all devices that the drain changed, also
// those that became silent since or were out already. Devices that lied, were declared out, are
// slow, or were drained individually stay as they are.
func TestDrainIsUndone(t *testing.T) {
	b := newCluster(t, 1)
	b.registerHost("n2", 9) // devices 2 to 10
	const why = "its host is drained"
	type is struct {
		state  wire.DeviceState
		reason string
	}
	wants := func(when string, want ...is) {
		t.Helper()
		for i, d := range b.hostOf("n2").Devices {
			if have := (is{d.State, d.Reason}); have != want[i] {
				t.Fatalf("%s, device %d is %v, want %v", when, d.Id, have, want[i])
			}
		}
	}
	b.leads(3, drainingState, "it is slow", true)
	b.ok(b.setDevice(&wire.SetDeviceState{Device: 4, State: drainingState, Reason: "set draining by hand"}))
	b.setOut(5)
	b.leads(6, outState, "it lies", true)
	b.fallsSilent(7)
	b.leads(8, outState, "it failed", false)
	b.leads(9, drainingState, "it is slow", true)
	b.ok(b.setHost(&wire.SetHostState{Host: "n2", State: drainingState, Reason: why}))
	b.fallsSilent(9)
	b.fallsSilent(10)
	slow, byHand := is{drainingState, "it is slow"}, is{drainingState, "set draining by hand"}
	out, lies, failed := is{outState, "given up"}, is{outState, "it lies"}, is{outState, "it failed"}
	silent := is{outState, record.ReasonSilent}
	wants("drained", is{drainingState, why}, slow, byHand, out, lies, silent, failed, silent, silent)

	b.ok(b.setHost(&wire.SetHostState{Host: "n2", State: inState, Reason: "no more", Undoes: "another drain"}))
	wants("what was not begun is undone", is{drainingState, why}, slow, byHand, out, lies, silent, failed, silent, silent)
	for range 2 { // the first answer was lost
		b.ok(b.setHost(&wire.SetHostState{Host: "n2", State: inState, Reason: "no more", Undoes: why}))
		wants("undone", is{inState, "no more"}, slow, byHand, out, lies, silent, failed, silent, silent)
	}
	for _, device := range []uint32{7, 9, 10} {
		b.isHeard(device)
	}
	back := is{inState, "its host is back"}
	wants("the host is heard", is{inState, "no more"}, slow, byHand, out, lies, back, failed, slow, back)
	b.registerHost("n2", 9)
	wants("its server starts again", is{inState, "no more"}, slow, byHand, out, lies, back, is{inState, ""}, slow, back)
	// A request that names no drain applies to all of them.
	b.ok(b.setHost(&wire.SetHostState{Host: "n2", State: inState, Reason: "all"}))
	for _, d := range b.hostOf("n2").Devices {
		if d.State != inState {
			t.Fatalf("device %d is %v", d.Id, d.State)
		}
	}
	b.settleScans()
	b.check()
	b.replays()
	b.keepLog("v1-drain-undone")
}
