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
	// Asked is the state that an administrator requested: out or draining. It holds until an
	// administrator requests another, whatever the device's host reports meanwhile. 0: no request.
	Asked DeviceState
	// Was is the reason of the drain that continues when the silent host returns.
	Was      string
	Capacity uint64 // bytes, from its last registration
	// Epoch grows with the first registration after each boot of its host.
	Epoch  moraine.Epoch
	Reason string // reason of its state
	// Passed is the log index after which its last full report began. That report covers every
	// change that ended before.
	Passed uint64
	// Unexplained chunks of the last full report.
	UnknownBytes, UnknownChunks uint64
	// Scan is the present or last job that scans its stripes.
	Scan moraine.JobID
	// Booted is the log index at which its present boot epoch, or the incarnation, began. Reported
	// is the Booted after which its last full report began.
	Booted, Reported uint64
	// Fitting is the number of chunks of the last full report that fit a record, were not adopted,
	// and may be the only intact copy.
	Fitting uint64
}

const DeviceVersion = 1

// Encode returns the stored value.
func (d *Device) Encode() []byte {
	return d.fields(encoder(64 + len(d.Host) + len(d.Reason) + len(d.Was))).B
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (d *Device) Decode(b []byte) error { return d.fields(decoder(b)).End("device") }

func (d *Device) fields(c *codec) *codec {
	c.version(DeviceVersion)
	c.array(d.Uuid[:])
	c.string(&d.Host)
	states := byte(d.State) | byte(d.Asked)<<4
	oneByte(c, &states)
	if c.reading {
		d.State, d.Asked = DeviceState(states&0xf), DeviceState(states>>4)
	}
	uvarint(c, &d.Capacity)
	uvarint(c, &d.Epoch)
	c.string(&d.Reason)
	uvarint(c, &d.Passed)
	uvarint(c, &d.UnknownBytes)
	uvarint(c, &d.UnknownChunks)
	fixed64(c, &d.Scan)
	uvarint(c, &d.Booted)
	uvarint(c, &d.Reported)
	c.string(&d.Was)
	uvarint(c, &d.Fitting)
	return c
}

// ToWire returns the wire form.
func (d *Device) ToWire() *wire.Device {
	return &wire.Device{Id: uint32(d.Id), Uuid: d.Uuid[:], Host: d.Host, State: d.State, Capacity: d.Capacity, Epoch: uint64(d.Epoch), Reason: d.Reason, Reported: d.IsReported()}
}

// IsReported reports whether the device sent a full report since it booted, in this incarnation.
// Its missing chunks are then known.
func (d *Device) IsReported() bool { return d.Reported >= d.Booted }

// Serves reports whether the device's chunks count as present.
func (d *Device) Serves() bool { return d.State == DeviceIn || d.State == DeviceDraining }

// A device goes out when its host is silent for longer than the repair grace, and its chunks are
// rebuilt elsewhere. A device that was draining continues to drain when its host returns.

// ReasonSilent is the reason of a device that the leader took out because its host was silent for
// longer than the repair grace.
const ReasonSilent = "its host is silent"

// reasonAsked is the reason of a device that returned to the state that an administrator had set
// before it went out.
const reasonAsked = "as an administrator set it before it went out"

// ComesBack returns the state, and its reason, of a device that is out and can be used again.
func (d *Device) ComesBack() (DeviceState, string) {
	switch {
	case d.Asked == 0:
		return DeviceIn, ""
	case d.Was != "":
		return d.Asked, d.Was
	}
	return d.Asked, reasonAsked
}

// DrainsOn reports whether the device is out only because its host is silent, and will drain on
// return.
func (d *Device) DrainsOn() bool {
	return d.State == DeviceOut && d.Reason == ReasonSilent && d.Asked == DeviceDraining
}
