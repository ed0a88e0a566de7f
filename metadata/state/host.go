package state

import (
	"github.com/morainefs/moraine"
)

// host is the record of one host.
type host struct {
	id        string // in the key
	rack      string
	addresses []string
	admin     string
	release   string
	devices   []moraine.DeviceID // those that were last seen on it, in order
	live      uint32             // how many of them are not retired
	bucket    string             // that its mover serves; empty: it has none
	// away is until when, in cluster time, its silence is planned, and why.
	away    uint64
	awayWhy string
}

const hostVersion = 1

func (h *host) encode() []byte {
	b := putString([]byte{hostVersion}, h.rack)
	b = putUvarint(b, uint64(len(h.addresses)))
	for _, a := range h.addresses {
		b = putString(b, a)
	}
	b = putString(b, h.admin)
	b = putString(b, h.release)
	b = putUvarint(b, uint64(len(h.devices)))
	for _, d := range h.devices {
		b = putUvarint(b, uint64(d))
	}
	b = putUvarint(b, uint64(h.live))
	b = putString(b, h.bucket)
	return putString(putUvarint(b, h.away), h.awayWhy)
}

func (h *host) decode(b []byte) error {
	d := dec{b: b}
	d.version(hostVersion)
	h.rack = d.string()
	for range d.count(1) {
		h.addresses = append(h.addresses, d.string())
	}
	h.admin = d.string()
	h.release = d.string()
	for range d.count(1) {
		h.devices = append(h.devices, moraine.DeviceID(d.u32()))
	}
	h.live = d.u32()
	h.bucket = d.string()
	h.away, h.awayWhy = d.uvarint(), d.string()
	return d.end("host")
}

// host returns a host's record; nil where there is none.
func (v *view) host(id string) (*host, error) {
	b, ok, err := v.r.Get(v.k.host(id))
	if err != nil || !ok {
		return nil, err
	}
	h := &host{id: id}
	return h, h.decode(b)
}

func (t *tx) putHost(h *host) { t.put(t.k.host(h.id), h.encode()) }

// fleet counts what the default scheme goes by: hosts with a device that is
// not retired, and such devices.
type fleet struct{ hosts, devices uint64 }

func (f *fleet) encode() []byte {
	return putUvarint(putUvarint([]byte{hostVersion}, f.hosts), f.devices)
}

func (f *fleet) decode(b []byte) error {
	d := dec{b: b}
	d.version(hostVersion)
	f.hosts, f.devices = d.uvarint(), d.uvarint()
	return d.end("fleet")
}

func (v *view) fleet() (fleet, error) {
	b, ok, err := v.r.Get(v.k.meta(metaFleet))
	if err != nil || !ok {
		return fleet{}, err
	}
	var f fleet
	err = f.decode(b)
	return f, err
}

// hostCount returns how many hosts are registered.
func (v *view) hostCount() (int, error) {
	f, err := look[fleet](v, v.k.meta(metaFleet))
	if err != nil || f == nil {
		return 0, err
	}
	return int(f.hosts), nil
}

// addLive changes how many devices of a host are not retired. The caller
// writes the host.
func (t *tx) addLive(h *host, by int) error {
	f, err := t.fleet()
	if err != nil {
		return err
	}
	before := h.live
	h.live = uint32(int(h.live) + by)
	f.devices = uint64(int(f.devices) + by)
	switch {
	case before == 0 && h.live > 0:
		f.hosts++
	case before > 0 && h.live == 0:
		f.hosts--
	}
	t.put(t.k.meta(metaFleet), f.encode())
	return nil
}

// fleetChanged tells the leader to read hosts and devices again.
func (t *tx) fleetChanged() {
	t.count[cTopology]++
	t.events.DevicesChanged = true
}
