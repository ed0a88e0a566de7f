package record

import "github.com/morainefs/moraine"

// Host is the record of one host.
type Host struct {
	Id        string // in the key
	Rack      string
	Addresses []string
	Admin     string
	Release   string
	Devices   []moraine.DeviceID // devices last seen on it, in order
	Live      uint32             // number of its devices that are not retired
	Bucket    string             // bucket that its mover serves; empty: none
	// Away is the cluster time until which its silence is planned, and the next field the reason.
	Away    uint64
	AwayWhy string
}

const hostVersion = 1

// Encode returns the stored value.
func (h *Host) Encode() []byte { return h.fields(encoder(128)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (h *Host) Decode(b []byte) error { return h.fields(decoder(b)).End("host") }

func (h *Host) fields(c *codec) *codec {
	c.version(hostVersion)
	c.string(&h.Rack)
	addresses := list(c, &h.Addresses, 1)
	for i := range addresses {
		c.string(&addresses[i])
	}
	c.string(&h.Admin)
	c.string(&h.Release)
	devices := list(c, &h.Devices, 1)
	for i := range devices {
		uvarint(c, &devices[i])
	}
	uvarint(c, &h.Live)
	c.string(&h.Bucket)
	uvarint(c, &h.Away)
	c.string(&h.AwayWhy)
	return c
}

// Fleet has the counts that determine the default scheme: hosts with a device that is not retired,
// and such devices.
type Fleet struct{ Hosts, Devices uint64 }

// Encode returns the stored value.
func (f *Fleet) Encode() []byte { return f.fields(encoder(8)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (f *Fleet) Decode(b []byte) error { return f.fields(decoder(b)).End("fleet") }

func (f *Fleet) fields(c *codec) *codec {
	c.version(hostVersion)
	uvarint(c, &f.Hosts)
	uvarint(c, &f.Devices)
	return c
}
