package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// noteSilence keeps that a device was being drained, and why, which the leader takes out
// for the silence of its host. Any other change forgets it. The caller writes the device.
func (m *Machine) noteSilence(t *tx, d *record.Device, op *wire.SetDeviceState) error {
	d.Was = ""
	if t.caller.GetRole() == roleAdmin || d.State != record.DeviceDraining || op.GetState() != record.DeviceOut || op.GetReason() != record.ReasonSilent {
		return nil
	}
	ok, err := t.speaks(LevelSilentDrains)
	if err == nil && ok {
		// Clusters of earlier builds have devices that are drained and of which nobody asked it.
		d.Asked, d.Was = record.DeviceDraining, d.Reason
	}
	return err
}

// backFromSilence has a device drained on whose host is back. One that is out by an
// administrator's word stays out.
func (m *Machine) backFromSilence(t *tx, d *record.Device) error {
	if !d.DrainsOn() {
		return nil
	}
	if ok, err := t.speaks(LevelSilentDrains); err != nil || !ok {
		return err
	}
	back, why := d.ComesBack()
	d.State, d.Reason, d.Was = back, why, ""
	if err := m.scanDevice(t, d); err != nil {
		return err
	}
	t.putDevice(d)
	t.fleetChanged()
	return nil
}

// drainOnReturn notes that a device which is out is to be drained where it comes back:
// nobody has said that it is to stay out.
func (m *Machine) drainOnReturn(t *tx, d *record.Device, op *wire.SetHostState) error {
	switch {
	case len(op.GetReason()) > moraine.MaxNameLen:
		return fail(moraine.NameTooLong, "set host state", op.GetHost(), "a reason of %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	case d.Asked != 0 || t.caller.GetRole() != roleAdmin:
		return nil
	}
	d.Asked, d.Was = record.DeviceDraining, op.GetReason()
	t.putDevice(d)
	t.fleetChanged()
	return nil
}
