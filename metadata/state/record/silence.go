package record

// A device whose host is silent for longer than the grace of repairs is out: what it holds
// is rebuilt elsewhere. One that was being drained is drained on when its host is back.

// ReasonSilent is the reason of a device that the leader took out as its host was silent
// for longer than the grace of repairs.
const ReasonSilent = "its host is silent"

// reasonAsked is the reason of a device that is back in the state that an
// administrator had set before it went out.
const reasonAsked = "as an administrator set it before it went out"

// ComesBack is the state of a device that is out and can be used again, and why.
func (d *Device) ComesBack() (DeviceState, string) {
	switch {
	case d.Asked == 0:
		return DeviceIn, ""
	case d.Was != "":
		return d.Asked, d.Was
	}
	return d.Asked, reasonAsked
}

// DrainsOn reports whether a device is out for its host's silence alone, and to be drained.
func (d *Device) DrainsOn() bool {
	return d.State == DeviceOut && d.Reason == ReasonSilent && d.Asked == DeviceDraining
}
