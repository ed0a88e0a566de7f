package record

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// DeviceState is a wire.DeviceState.
type DeviceState = wire.DeviceState

const (
	DeviceIn       = wire.DeviceState_DEVICE_STATE_IN
	DeviceOut      = wire.DeviceState_DEVICE_STATE_OUT
	DeviceDraining = wire.DeviceState_DEVICE_STATE_DRAINING
	DeviceRetired  = wire.DeviceState_DEVICE_STATE_RETIRED
)

// Device is the record of one device.
type Device struct {
	Id    moraine.DeviceID // in the key
	Uuid  moraine.UUID
	Host  string
	State DeviceState
	// asked is the state that an administrator set: out or draining. It holds
	// until an administrator sets another one, whatever the device's host says
	// or leaves unsaid meanwhile. 0: nobody asked for anything.
	Asked DeviceState
	// was is why it is drained, of a device that is out for as long as its host is
	// silent.
	Was      string
	Capacity uint64 // bytes, as of its last registration
	// epoch is raised by the first registration of each boot of its host.
	Epoch  moraine.Epoch
	Reason string // of its state
	// passed is the log index that the last full report of its chunks began
	// after; it explains everything that ended before.
	Passed uint64
	// Of the last full report: what nothing explains.
	UnknownBytes, UnknownChunks uint64
	// scan is the job that judges its stripes, or last did.
	Scan moraine.JobID
	// booted is the log index at which its present boot epoch, or the incarnation, began;
	// reported is the one that its last whole report began after.
	Booted, Reported uint64
	// fitting is how many chunks of the last full report fit a record, were not adopted, and
	// may be the only whole copy.
	Fitting uint64
}

const DeviceVersion = 1

func (d *Device) Encode() []byte {
	b := make([]byte, 0, 64+len(d.Host)+len(d.Reason)+len(d.Was))
	b = append(b, DeviceVersion)
	b = append(b, d.Uuid[:]...)
	b = PutString(b, d.Host)
	b = append(b, byte(d.State)|byte(d.Asked)<<4)
	b = PutUvarint(b, d.Capacity)
	b = PutUvarint(b, uint64(d.Epoch))
	b = PutString(b, d.Reason)
	b = PutUvarint(b, d.Passed)
	b = PutUvarint(b, d.UnknownBytes)
	b = PutUvarint(b, d.UnknownChunks)
	b = PutFixed64(b, uint64(d.Scan))
	b = PutUvarint(b, d.Booted)
	b = PutUvarint(b, d.Reported)
	return PutUvarint(PutString(b, d.Was), d.Fitting)
}

func (d *Device) Decode(b []byte) error {
	r := Dec{B: b}
	r.Version(DeviceVersion)
	for i := range d.Uuid {
		d.Uuid[i] = r.Byte()
	}
	d.Host = r.string()
	state := r.Byte()
	d.State, d.Asked = DeviceState(state&0xf), DeviceState(state>>4)
	d.Capacity = r.Uvarint()
	d.Epoch = moraine.Epoch(r.Uvarint())
	d.Reason = r.string()
	d.Passed = r.Uvarint()
	d.UnknownBytes = r.Uvarint()
	d.UnknownChunks = r.Uvarint()
	d.Scan = moraine.JobID(r.Fixed64())
	d.Booted, d.Reported = r.Uvarint(), r.Uvarint()
	d.Was, d.Fitting = r.string(), r.Uvarint()
	return r.End("device")
}

func (d *Device) ToWire() *wire.Device {
	return &wire.Device{Id: uint32(d.Id), Uuid: d.Uuid[:], Host: d.Host, State: d.State, Capacity: d.Capacity, Epoch: uint64(d.Epoch), Reason: d.Reason, Reported: d.IsReported()}
}

// IsReported reports whether a whole report of its chunks was judged since it booted, in
// this incarnation: what is missing on it is known.
func (d *Device) IsReported() bool { return d.Reported >= d.Booted }

// Serves reports whether what the device holds counts.
func (d *Device) Serves() bool { return d.State == DeviceIn || d.State == DeviceDraining }

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
