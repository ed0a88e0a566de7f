package state_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// strayState is one relation of a restored state and its devices: the record of a stripe names
// device 1, and device 5 has the only intact copy of that chunk.
type strayState struct {
	name  string
	fates []fleet.Fate // of the copy on device 5
	make  func(b *bench, id uint64)
}

var strayStates = []strayState{
	{"nothing has reported", []fleet.Fate{fleet.Undecided}, func(*bench, uint64) {}},
	{"device 5 is out, nothing has reported", []fleet.Fate{fleet.Undecided}, func(b *bench, _ uint64) { b.setOut(5) }},
	{"device 1 has reported without it", []fleet.Fate{fleet.Wanted}, func(b *bench, id uint64) {
		b.misses(1, id, 0)
		b.passes(1, 2, 3, 4, 5, 6)
	}},
	{"device 5 is out, device 1 has reported without it", []fleet.Fate{fleet.Undecided}, func(b *bench, id uint64) {
		b.misses(1, id, 0)
		b.passes(1, 2, 3, 4, 5, 6)
		b.setOut(5)
	}},
	{"both are out, no stripe was judged since", []fleet.Fate{fleet.Undecided}, func(b *bench, _ uint64) {
		b.passes(2, 3, 4, 5, 6)
		b.setOut(5)
		b.setOut(1)
	}},
	{"both are out, all stripes were judged", []fleet.Fate{fleet.Undecided}, func(b *bench, _ uint64) {
		b.passes(2, 3, 4, 5, 6)
		b.setOut(5)
		b.setOut(1)
		b.settleScans()
	}},
	{"both are draining, device 1 is silent", []fleet.Fate{fleet.Undecided}, func(b *bench, _ uint64) {
		b.passes(2, 3, 4, 5, 6)
		b.ok(b.setDevice(&wire.SetDeviceState{Device: 1, State: drainingState}))
		b.ok(b.setDevice(&wire.SetDeviceState{Device: 5, State: drainingState}))
	}},
	{"the stripe is lost", []fleet.Fate{fleet.Wanted}, func(b *bench, id uint64) {
		b.misses(1, id, 0)
		b.misses(2, id, 1)
		b.misses(3, id, 2)
		b.passes(1, 2, 3, 4, 5, 6)
	}},
}

// doors are all requests and commands that can have chunks deleted or remove a device. The test
// tries each on the copy on device 5. One that removes the device must be refused.
var doors = map[string]func(t *testing.T, b *bench, id uint64){
	"fsck --repair --accept-loss": func(t *testing.T, b *bench, id uint64) {
		for version := range uint32(4) {
			require.Zero(t, b.drop(&wire.DroppedChunk{Device: 5, Stripe: id, Version: version, Length: 4096}))
		}
	},
	"device set retired": func(t *testing.T, b *bench, _ uint64) {
		b.wants(b.setDevice(&wire.SetDeviceState{Device: 5, State: retiredState}), moraine.Conflict)
	},
	"remove the host": func(t *testing.T, b *bench, _ uint64) {
		b.wants(b.setHost(&wire.SetHostState{Host: "n5", State: retiredState}), moraine.Conflict)
	},
	"drain, then retire": func(t *testing.T, b *bench, _ uint64) {
		_ = b.setHost(&wire.SetHostState{Host: "n5", State: drainingState, Reason: "new disks"})
		b.settleScans()
		b.wants(b.setDevice(&wire.SetDeviceState{Device: 5, State: retiredState}), moraine.Conflict)
	},
	"another incarnation": func(t *testing.T, b *bench, _ uint64) {
		b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RaiseIncarnation{RaiseIncarnation: &statepb.RaiseIncarnation{}}}).Response)
		b.wants(b.setDevice(&wire.SetDeviceState{Device: 5, State: retiredState}), moraine.Conflict)
	},
	"its deletion is acknowledged": func(t *testing.T, b *bench, id uint64) {
		b.ok(b.as("n5", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{DeletedChunks: &wire.DeletedChunks{
			Deleted: []*wire.Deletion{{Device: 5, Stripe: id, Below: 9}}}}}))
	},
	"its host starts without the device": func(t *testing.T, b *bench, _ uint64) { b.registerHost("n5", 0) },
	"the grace passes": func(t *testing.T, b *bench, _ uint64) {
		for range 90 {
			b.tick(1000)
		}
	},
	"scans end": func(t *testing.T, b *bench, _ uint64) { b.settleScans() },
}

// TestWhatFitsARecordIsNeverDeleted: in a restored cluster a device has a chunk that no record
// names there, but that fits a record whose own chunk is gone or unknown. No request, command or
// flag deletes that chunk or retires its device. The device itself deletes only what a report or a
// heartbeat tells it to delete.
func TestWhatFitsARecordIsNeverDeleted(t *testing.T) {
	for _, s := range strayStates {
		for name, door := range doors {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				b, _, id := restored(t)
				moved := copyOf(id, 0, 2)
				s.make(b, id)
				require.Contains(t, s.fates, b.judged(5, moved))
				b.reportsStray(5)
				door(t, b, id)
				require.NotContains(t, []fleet.Fate{fleet.Dead, fleet.Unknown, fleet.Superseded}, b.judged(5, moved))
				for _, list := range []func() ([]*wire.Deletion, error){
					func() ([]*wire.Deletion, error) { return fleet.Tombstones(b.m.View(b.kv), 5, math.MaxUint64, 100) },
					func() ([]*wire.Deletion, error) {
						return fleet.KeptTombstones(b.m.View(b.kv), 5, math.MaxUint64, 0, 0, 100)
					},
				} {
					deletions, err := list()
					require.NoError(t, err)
					require.False(t, slices.ContainsFunc(deletions, func(d *wire.Deletion) bool { return d.Stripe == id }))
				}
				b.check()
			})
		}
	}
}

// reportsStray makes a device end a report in which one chunk was left undecided.
func (b *bench) reportsStray(device uint32) {
	b.t.Helper()
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_CompleteReport{CompleteReport: &statepb.CompleteReport{
		Device: device, PassStarted: b.index, Reported: b.index, FittingChunks: 1}}}).Response)
}

// TestADeviceThatMayHoldMoreIsNotRetired: after a restore a device can be retired once it has
// reported and no stripe may need what it reported. An administrator can accept the loss of one
// that is out with accept_loss, and in no other way.
func TestADeviceThatMayHoldMoreIsNotRetired(t *testing.T) {
	b, _, _ := restored(t)
	retire := func(device uint32, acceptLoss bool) *wire.MetaResponse {
		return b.setDevice(&wire.SetDeviceState{Device: device, State: retiredState, AcceptLoss: acceptLoss})
	}
	for _, out := range []bool{false, true} {
		if out {
			b.setOut(5)
		}
		resp := retire(5, false)
		b.wants(resp, moraine.Conflict)
		require.Contains(t, resp.GetError().GetText(), "the device has not reported since the restore of the metadata")
	}
	b.reportsStray(5)
	resp := retire(5, false)
	b.wants(resp, moraine.Conflict)
	require.Contains(t, resp.GetError().GetText(), "--accept-loss")
	b.passes(5, 6)
	b.ok(retire(5, false))
	b.ok(retire(6, false))
	b.reportsStray(4)
	b.wants(retire(4, true), moraine.Conflict) // it is in
	b.setOut(4)
	b.ok(retire(4, true))
	b.check()
}
