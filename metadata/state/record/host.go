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
func (h *Host) Encode() []byte {
	b := PutString([]byte{hostVersion}, h.Rack)
	b = PutUvarint(b, uint64(len(h.Addresses)))
	for _, a := range h.Addresses {
		b = PutString(b, a)
	}
	b = PutString(b, h.Admin)
	b = PutString(b, h.Release)
	b = PutUvarint(b, uint64(len(h.Devices)))
	for _, d := range h.Devices {
		b = PutUvarint(b, uint64(d))
	}
	b = PutUvarint(b, uint64(h.Live))
	b = PutString(b, h.Bucket)
	return PutString(PutUvarint(b, h.Away), h.AwayWhy)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (h *Host) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(hostVersion)
	h.Rack = d.string()
	for range d.Count(1) {
		h.Addresses = append(h.Addresses, d.string())
	}
	h.Admin = d.string()
	h.Release = d.string()
	for range d.Count(1) {
		h.Devices = append(h.Devices, moraine.DeviceID(d.U32()))
	}
	h.Live = d.U32()
	h.Bucket = d.string()
	h.Away, h.AwayWhy = d.Uvarint(), d.string()
	return d.End("host")
}

// Fleet has the counts that determine the default scheme: hosts with a device that is not retired,
// and such devices.
type Fleet struct{ Hosts, Devices uint64 }

// Encode returns the stored value.
func (f *Fleet) Encode() []byte {
	return PutUvarint(PutUvarint([]byte{hostVersion}, f.Hosts), f.Devices)
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (f *Fleet) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(hostVersion)
	f.Hosts, f.Devices = d.Uvarint(), d.Uvarint()
	return d.End("fleet")
}
