package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/transport/wire"
)

func (b *bench) hostState(role, host string, to wire.DeviceState) *wire.MetaResponse {
	return b.as("a1", role, &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: &wire.SetHostState{Host: host, State: to, Reason: "by hand"}}})
}

func (b *bench) setHost(op *wire.SetHostState) *wire.MetaResponse {
	return b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetHostState{SetHostState: op}})
}

func (b *bench) setDevice(op *wire.SetDeviceState) *wire.MetaResponse {
	return b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: op}})
}

func (b *bench) maintenance(host string, millis uint64, others ...string) *wire.MetaResponse {
	return b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetMaintenance{SetMaintenance: &wire.SetMaintenance{
		Host: host, Millis: millis, Reason: "new kernel", Others: others}}})
}

func (b *bench) hostOf(id string) *wire.Host {
	b.t.Helper()
	hosts, err := fleet.Hosts(b.m.View(b.kv))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, h := range hosts {
		if h.Id == id {
			return h
		}
	}
	b.t.Fatalf("no host %s", id)
	return nil
}

func (b *bench) wants(resp *wire.MetaResponse, kind moraine.Kind) {
	b.t.Helper()
	if have := moraine.Kind(resp.GetError().GetKind()); resp.GetError() == nil || have != kind {
		b.t.Fatalf("answered %v, want %v", resp, kind)
	}
}

// settleScans runs the scans of the devices that changed state.
func (b *bench) settleScans() {
	b.t.Helper()
	for b.runLeaderJob(wire.JobKind_JOB_KIND_SCAN_DEVICE, 1000) {
	}
}

// keepLog writes the golden log of a test where the flag asks for it.
func (b *bench) keepLog(name string) {
	if *rewriteLogs {
		b.writeLog(name)
	}
}

// TestDrainedHostIsRemoved: one entry changes the state of all devices of a host or of none,
// repeating it changes nothing, and a host can be removed only when no stripe has a chunk on it.
func TestDrainedHostIsRemoved(t *testing.T) {
	b := newCluster(t, 4)
	b.registerHost("n5", 3)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	id := c.grant(f, 1)
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(id, 10, 6, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	b.wants(b.hostState("admin", "n9", wire.DeviceState_DEVICE_STATE_DRAINING), moraine.NotFound)
	b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
		Device: 7, State: wire.DeviceState_DEVICE_STATE_OUT}}}))
	for range 2 { // the first answer was lost
		b.ok(b.hostState("admin", "n5", wire.DeviceState_DEVICE_STATE_DRAINING))
		for i, want := range []wire.DeviceState{wire.DeviceState_DEVICE_STATE_DRAINING, wire.DeviceState_DEVICE_STATE_DRAINING, wire.DeviceState_DEVICE_STATE_OUT} {
			if have := b.hostOf("n5").Devices[i].State; have != want {
				t.Fatalf("device %d is %v, want %v", i, have, want)
			}
		}
		b.settleScans()
	}
	// One device is not empty, so none is retired.
	b.wants(b.hostState("admin", "n5", wire.DeviceState_DEVICE_STATE_RETIRED), moraine.Conflict)
	if have := b.hostOf("n5").Devices[0].State; have != wire.DeviceState_DEVICE_STATE_DRAINING {
		t.Fatalf("an empty device is %v after a removal that failed", have)
	}
	// Its server restarts, and the requested state stays.
	b.registerHost("n5", 3)
	if have := b.hostOf("n5").Devices[1].State; have != wire.DeviceState_DEVICE_STATE_DRAINING {
		t.Fatalf("after a start the device is %v", have)
	}
	job := b.repairOf(id, 1)
	j := b.leaseRepair("n1")
	if j.Id != job || len(j.Repairs) != 1 || j.Repairs[0].Moving != 1 {
		t.Fatalf("leased %v", j)
	}
	b.ok(b.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_CommitRepair{CommitRepair: &wire.CommitRepair{
		Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intents: j.Repairs[0].Intents}}}))
	for range 2 {
		b.ok(b.hostState("admin", "n5", wire.DeviceState_DEVICE_STATE_RETIRED))
		b.settleScans()
	}
	for _, d := range b.hostOf("n5").Devices {
		if d.State != wire.DeviceState_DEVICE_STATE_RETIRED {
			t.Fatalf("device %d of the removed host is %v", d.Id, d.State)
		}
	}
	b.check()
	b.replays()
	b.keepLog("v1-host-drain")
}

// TestMaintenance: the entry decides on an announced absence by the hosts that are away at that
// entry. The absence ends with the host's next boot.
func TestMaintenance(t *testing.T) {
	b := newCluster(t, 5)
	b.wants(b.maintenance("n9", 1000), moraine.NotFound)
	b.wants(b.maintenance("n1", 1<<40), moraine.InvalidArgument)
	b.ok(b.maintenance("n1", 60_000))
	b.ok(b.maintenance("n1", 90_000)) // a repeated, longer one: the host does not count against itself
	if h := b.hostOf("n1"); h.MaintenanceUntil != 90_000 || h.MaintenanceReason != "new kernel" {
		t.Fatalf("n1 is away until %d for %q", h.MaintenanceUntil, h.MaintenanceReason)
	}
	// Both were checked without each other: the second one must be checked again.
	b.wants(b.maintenance("n2", 60_000), moraine.Stale)
	b.ok(b.maintenance("n2", 60_000, "n1"))
	b.ok(b.maintenance("n2", 0))
	b.ok(b.maintenance("n2", 0))
	if h := b.hostOf("n2"); h.MaintenanceUntil != 0 || h.MaintenanceReason != "" {
		t.Fatalf("n2 is away until %d", h.MaintenanceUntil)
	}
	// The host registers without a boot (a metadata server forgot it): still away.
	again := b.hostOf("n1")
	b.ok(b.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: again}}}))
	if b.hostOf("n1").MaintenanceUntil == 0 {
		t.Fatal("a registration without a boot ended the maintenance")
	}
	b.registerHost("n1", 1)
	if b.hostOf("n1").MaintenanceUntil != 0 {
		t.Fatal("n1 has booted and is still away")
	}
	// An expired absence no longer counts.
	b.ok(b.maintenance("n3", 2000))
	for range 3 {
		b.tick(1000)
	}
	b.ok(b.maintenance("n4", 60_000))
	b.check()
	b.replays()
	b.keepLog("v1-maintenance")

}

// TestADeviceMoreIsNoBoot: a running host that registers an additional device stays away for the
// announced time, and what its other devices acknowledged still counts.
func TestADeviceMoreIsNoBoot(t *testing.T) {
	b := newCluster(t, 3)
	b.ok(b.maintenance("n1", 60_000))
	h := b.hostOf("n1")
	epoch := h.Devices[0].Epoch
	h.Devices = append(h.Devices, &wire.Device{Uuid: make([]byte, 16), Capacity: 1 << 40, State: wire.DeviceState_DEVICE_STATE_IN})
	h.Devices[1].Uuid[0] = 0xdd
	b.ok(b.as("n1", "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: h}}}))
	now := b.hostOf("n1")
	if len(now.Devices) != 2 || now.MaintenanceUntil != 60_000 || now.Devices[0].Epoch != epoch {
		t.Fatalf("the host is %v", now)
	}
	b.check()
}

// TestDistrustedDeviceStaysOut: only an administrator can bring back a device that the leader took
// out permanently. A device that merely failed returns with its server.
func TestDistrustedDeviceStaysOut(t *testing.T) {
	b := newCluster(t, 3)
	out := func(device uint32, keep bool) {
		b.ok(b.as("m1", "metadata", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
			Device: device, State: wire.DeviceState_DEVICE_STATE_OUT, Reason: "it lies", Keep: keep}}}))
	}
	for range 2 {
		out(1, true)
		out(2, false)
	}
	b.registerHost("n1", 1)
	b.registerHost("n2", 1)
	if have := b.hostOf("n1").Devices[0].State; have != wire.DeviceState_DEVICE_STATE_OUT {
		t.Fatalf("a device that lied is %v after its server's start", have)
	}
	if have := b.hostOf("n2").Devices[0].State; have != wire.DeviceState_DEVICE_STATE_IN {
		t.Fatalf("a device that failed is %v after its server's start", have)
	}
	b.ok(b.hostState("admin", "n1", wire.DeviceState_DEVICE_STATE_IN))
	b.registerHost("n1", 1)
	if have := b.hostOf("n1").Devices[0].State; have != wire.DeviceState_DEVICE_STATE_IN {
		t.Fatalf("it was set in, and is %v", have)
	}
	b.settleScans()
	b.check()
	b.replays()
	b.keepLog("v1-distrust")
}

// TestCarriedDiskIsNotTakenBack: a host that only misses a disk does not claim it from the host
// that has it now.
func TestCarriedDiskIsNotTakenBack(t *testing.T) {
	b := newCluster(t, 3)
	first := b.hostOf("n1")
	uuid := first.Devices[0].Uuid
	register := func(host string, state wire.DeviceState, epoch uint64) string {
		resp := b.ok(b.as(host, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
			Host: &wire.Host{Id: host, Addresses: []string{host + ":1"}, Devices: []*wire.Device{{Uuid: uuid, Capacity: 1 << 40, State: state, Epoch: epoch}}}}}}))
		return resp.GetRegisterHost().Devices[0].Host
	}
	if on := register("n4", wire.DeviceState_DEVICE_STATE_IN, 0); on != "n4" {
		t.Fatalf("the disk was carried to n4 and is on %s", on)
	}
	if on := register("n1", wire.DeviceState_DEVICE_STATE_OUT, first.Devices[0].Epoch); on != "n4" {
		t.Fatalf("the host that lost the disk took it back: it is on %s", on)
	}
	if on := register("n1", wire.DeviceState_DEVICE_STATE_IN, 0); on != "n1" {
		t.Fatalf("the disk was carried back and is on %s", on)
	}
	b.settleScans()
	b.check()
	b.replays()
	b.keepLog("v1-carried-disk")
}

// TestSlowDeviceStaysDraining: a device that the leader drains permanently keeps draining after its
// server restarts, and after an absence.
func TestSlowDeviceStaysDraining(t *testing.T) {
	b := newCluster(t, 3)
	b.ok(b.as("m1", "metadata", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
		Device: 1, State: wire.DeviceState_DEVICE_STATE_DRAINING, Reason: "it is slow", Keep: true}}}))
	b.registerHost("n1", 1)
	b.ok(b.as("m1", "metadata", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
		Device: 1, State: wire.DeviceState_DEVICE_STATE_OUT, Reason: "it failed"}}}))
	b.registerHost("n1", 1)
	if have := b.hostOf("n1").Devices[0].State; have != wire.DeviceState_DEVICE_STATE_DRAINING {
		t.Fatalf("a device that is slow is %v after its server's start", have)
	}
	b.ok(b.hostState("admin", "n1", wire.DeviceState_DEVICE_STATE_IN))
	b.registerHost("n1", 1)
	if have := b.hostOf("n1").Devices[0].State; have != wire.DeviceState_DEVICE_STATE_IN {
		t.Fatalf("it was set in, and is %v", have)
	}
	b.settleScans()
	b.check()
	b.replays()
}
