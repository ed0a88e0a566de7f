package fleet

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// noteSilence records that a device was draining, and why, when the leader takes it out for its
// host's silence. Any other change deletes that record. The caller writes the device.
func noteSilence(t *kvtx.Tx, d *record.Device, op *wire.SetDeviceState) {
	d.Was = ""
	if t.Caller.GetRole() != kvtx.RoleAdmin && d.State == record.DeviceDraining && op.GetState() == record.DeviceOut && op.GetReason() == record.ReasonSilent {
		d.Asked, d.Was = record.DeviceDraining, d.Reason
	}
}

// backFromSilence continues the drain of a device whose host returned. A device that an
// administrator took out stays out.
func backFromSilence(t *kvtx.Tx, d *record.Device) error {
	if !d.DrainsOn() {
		return nil
	}
	back, why := d.ComesBack()
	d.State, d.Reason, d.Was = back, why, ""
	if err := scanDevice(t, d); err != nil {
		return err
	}
	putDevice(t, d)
	fleetChanged(t)
	return nil
}

// drainOnReturn records that a device that is out must drain when it returns, unless an
// administrator requested that it stays out.
func drainOnReturn(t *kvtx.Tx, d *record.Device, op *wire.SetHostState) error {
	switch {
	case len(op.GetReason()) > moraine.MaxNameLen:
		return kvtx.Fail(moraine.NameTooLong, "set host state", op.GetHost(), "the reason has %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	case d.Asked != 0 || t.Caller.GetRole() != kvtx.RoleAdmin:
		return nil
	}
	d.Asked, d.Was = record.DeviceDraining, op.GetReason()
	putDevice(t, d)
	fleetChanged(t)
	return nil
}
