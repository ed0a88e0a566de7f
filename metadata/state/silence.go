package state

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A device whose host is silent for longer than the grace of repairs is out: what it holds
// is rebuilt elsewhere. One that was being drained is drained on when its host is back.

// ReasonSilent is the reason of a device that the leader took out as its host was silent
// for longer than the grace of repairs.
const ReasonSilent = "its host is silent"

// reasonAsked is the reason of a device that is back in the state that an
// administrator had set before it went out.
const reasonAsked = "as an administrator set it before it went out"

// comesBack is the state of a device that is out and can be used again, and why.
func (d *device) comesBack() (deviceState, string) {
	switch {
	case d.asked == 0:
		return deviceIn, ""
	case d.was != "":
		return d.asked, d.was
	}
	return d.asked, reasonAsked
}

// drainsOn reports whether a device is out for its host's silence alone, and to be drained.
func (d *device) drainsOn() bool {
	return d.state == deviceOut && d.reason == ReasonSilent && d.asked == deviceDraining
}

// noteSilence keeps that a device was being drained, and why, which the leader takes out
// for the silence of its host. Any other change forgets it. The caller writes the device.
func (m *Machine) noteSilence(t *tx, d *device, op *wire.SetDeviceState) error {
	d.was = ""
	if t.caller.GetRole() == roleAdmin || d.state != deviceDraining || op.GetState() != deviceOut || op.GetReason() != ReasonSilent {
		return nil
	}
	ok, err := t.speaks(LevelSilentDrains)
	if err == nil && ok {
		// Clusters of earlier builds have devices that are drained and of which nobody asked it.
		d.asked, d.was = deviceDraining, d.reason
	}
	return err
}

// backFromSilence has a device drained on whose host is back. One that is out by an
// administrator's word stays out.
func (m *Machine) backFromSilence(t *tx, d *device) error {
	if !d.drainsOn() {
		return nil
	}
	if ok, err := t.speaks(LevelSilentDrains); err != nil || !ok {
		return err
	}
	back, why := d.comesBack()
	d.state, d.reason, d.was = back, why, ""
	if err := m.scanDevice(t, d); err != nil {
		return err
	}
	t.putDevice(d)
	t.fleetChanged()
	return nil
}

// drainOnReturn notes that a device which is out is to be drained where it comes back:
// nobody has said that it is to stay out.
func (m *Machine) drainOnReturn(t *tx, d *device, op *wire.SetHostState) error {
	switch {
	case len(op.GetReason()) > moraine.MaxNameLen:
		return fail(moraine.NameTooLong, "set host state", op.GetHost(), "a reason of %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	case d.asked != 0 || t.caller.GetRole() != roleAdmin:
		return nil
	}
	d.asked, d.was = deviceDraining, op.GetReason()
	t.putDevice(d)
	t.fleetChanged()
	return nil
}
