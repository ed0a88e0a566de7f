package state_test

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	inState       = wire.DeviceState_DEVICE_STATE_IN
	outState      = wire.DeviceState_DEVICE_STATE_OUT
	drainingState = wire.DeviceState_DEVICE_STATE_DRAINING
	retiredState  = wire.DeviceState_DEVICE_STATE_RETIRED
)

// leads sets the state of a device as a leader does.
func (b *bench) leads(device uint32, to wire.DeviceState, reason string, keep bool) {
	b.t.Helper()
	b.ok(b.as("m1", "metadata", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
		Device: device, State: to, Reason: reason, Keep: keep}}}))
}

func (b *bench) fallsSilent(device uint32) { b.leads(device, outState, record.ReasonSilent, false) }
func (b *bench) isHeard(device uint32)     { b.leads(device, inState, "its host is back", false) }

func (b *bench) wantDevice(host string, to wire.DeviceState, reason string) {
	b.t.Helper()
	if d := b.hostOf(host).Devices[0]; d.State != to || d.Reason != reason {
		b.t.Fatalf("the device of %s is %v for %q, want %v for %q", host, d.State, d.Reason, to, reason)
	}
}

func (b *bench) setOut(device uint32) {
	b.t.Helper()
	b.ok(b.as("a1", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_SetDeviceState{SetDeviceState: &wire.SetDeviceState{
		Device: device, State: outState, Reason: "given up"}}}))
}

// TestDrainedHostFallsSilent: the chunks of a drained host count as lost while it is silent, and
// continue to drain when it returns, however it returns. It is not removed meanwhile.
func TestDrainedHostFallsSilent(t *testing.T) {
	b := newCluster(t, 5)
	c := b.open(nil)
	f := c.mkfile(c.root, "f")
	id := c.grant(f, 1)
	b.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: 3,
		Stripes: []*wire.Stripe{stripe(id, 10, 1, 2, 3)}, Extents: []*wire.Extent{extent(0, 10, id, 0)}}))
	wants := func(missing, moving uint32) {
		t.Helper()
		b.settleScans()
		tasks, _, err := fleet.RepairQueue(b.m.View(b.kv), fleet.RepairCursor{}, 2, 0)
		if err != nil || len(tasks) != 1 || tasks[0].Missing != missing || tasks[0].Moving != moving {
			t.Fatalf("the queue has %v, %v", tasks, err)
		}
	}
	b.ok(b.hostState("admin", "n1", drainingState))
	wants(0, 1)
	back := []func(){
		func() { b.isHeard(1) },
		func() { b.registerHost("n1", 1) },
	}
	for _, comesBack := range back {
		for range 2 {
			b.fallsSilent(1)
		}
		b.wantDevice("n1", outState, record.ReasonSilent)
		wants(1, 0)
		b.wants(b.hostState("admin", "n1", retiredState), moraine.Conflict)
		b.ok(b.hostState("admin", "n1", drainingState)) // again: it is recorded already
		for range 2 {
			comesBack()
		}
		b.wantDevice("n1", drainingState, "by hand")
		wants(0, 1)
		b.check()
	}
	// A device that an administrator declares out meanwhile stays out, and its loss can be accepted
	// by a separate request.
	b.fallsSilent(1)
	b.setOut(1)
	b.isHeard(1)
	b.registerHost("n1", 1)
	b.wantDevice("n1", outState, "given up")
	b.wants(b.hostState("admin", "n1", retiredState), moraine.Conflict)
	b.ok(b.setHost(&wire.SetHostState{Host: "n1", State: retiredState, AcceptLoss: true}))
	b.settleScans()
	b.check()
	b.replays()
	b.keepLog("v1-silent-drain")
}

// TestDrainOfASilentHost: if a host is drained while its devices are already out, it drains when it
// returns, unless the drain is undone or it was to stay out.
func TestDrainOfASilentHost(t *testing.T) {
	b := newCluster(t, 5)
	for device := uint32(1); device <= 3; device++ {
		b.fallsSilent(device)
		b.ok(b.hostState("admin", []string{"n1", "n2", "n3"}[device-1], drainingState))
	}
	b.leads(4, outState, "its server took it out of service", false)
	b.ok(b.hostState("admin", "n4", drainingState))
	b.setOut(5)
	b.ok(b.hostState("admin", "n5", drainingState))
	b.wantDevice("n1", outState, record.ReasonSilent)
	b.ok(b.hostState("admin", "n3", inState))
	b.fallsSilent(3)
	b.isHeard(1)
	b.registerHost("n2", 1)
	b.isHeard(3)
	b.isHeard(4)
	b.wantDevice("n4", outState, "its server took it out of service")
	b.registerHost("n4", 1)
	b.registerHost("n5", 1)
	b.wantDevice("n1", drainingState, "by hand")
	b.wantDevice("n2", drainingState, "by hand")
	b.wantDevice("n3", inState, "its host is back")
	b.wantDevice("n4", drainingState, "by hand")
	b.wantDevice("n5", outState, "given up")
	// The device is empty: it may be retired.
	b.fallsSilent(1)
	b.ok(b.hostState("admin", "n1", retiredState))
	b.settleScans()
	b.check()
	b.replays()
	b.keepLog("v1-drain-of-silent")
}

// TestSlowDeviceFallsSilent: a device that the leader drains for slowness continues to drain when
// it returns, until an administrator sets it in.
func TestSlowDeviceFallsSilent(t *testing.T) {
	b := newCluster(t, 3)
	b.leads(1, drainingState, "it is slow", true)
	b.fallsSilent(1)
	b.isHeard(1)
	b.wantDevice("n1", drainingState, "it is slow")
	b.fallsSilent(1)
	b.registerHost("n1", 1)
	b.wantDevice("n1", drainingState, "it is slow")
	b.ok(b.hostState("admin", "n1", inState))
	b.fallsSilent(1)
	b.isHeard(1)
	b.wantDevice("n1", inState, "its host is back")
}

// TestDrainedMemoryIsLost: chunks only in the memory of drained hosts are lost once the hosts are
// out. They are back if the hosts return without a restart.
func TestDrainedMemoryIsLost(t *testing.T) {
	b := newCluster(t, 4)
	c := b.open(nil)
	f := c.save("f", []uint32{1, 2})
	for device := uint32(1); device <= 2; device++ {
		c.setState(device, drainingState)
	}
	c.wantLevel(f, moraine.Memory)
	b.settleScans()
	if lost := c.lostFiles(); len(lost) != 0 {
		t.Fatalf("they serve, and lost are %v", lost)
	}
	b.fallsSilent(1)
	b.fallsSilent(2)
	b.settleScans()
	c.wantLevel(f, 0)
	if lost := c.lostFiles(); len(lost) != 1 {
		t.Fatalf("lost are %v", lost)
	}
	b.isHeard(1)
	b.isHeard(2)
	b.settleScans()
	c.wantLevel(f, moraine.Memory)
	if lost := c.lostFiles(); len(lost) != 0 {
		t.Fatalf("they are back, and lost are %v", lost)
	}
	b.check()
	b.replays()
}
