package state

import "github.com/morainefs/moraine/metadata/state/record"

// host returns a host's record; nil where there is none.
func (v *view) host(id string) (*record.Host, error) {
	b, ok, err := v.r.Get(v.k.host(id))
	if err != nil || !ok {
		return nil, err
	}
	h := &record.Host{Id: id}
	return h, h.Decode(b)
}

func (t *tx) putHost(h *record.Host) { t.put(t.k.host(h.Id), h.Encode()) }

func (v *view) fleet() (record.Fleet, error) {
	b, ok, err := v.r.Get(v.k.meta(record.MetaFleet))
	if err != nil || !ok {
		return record.Fleet{}, err
	}
	var f record.Fleet
	err = f.Decode(b)
	return f, err
}

// hostCount returns how many hosts are registered.
func (v *view) hostCount() (int, error) {
	f, err := look[record.Fleet](v, v.k.meta(record.MetaFleet))
	if err != nil || f == nil {
		return 0, err
	}
	return int(f.Hosts), nil
}

// addLive changes how many devices of a host are not retired. The caller
// writes the host.
func (t *tx) addLive(h *record.Host, by int) error {
	f, err := t.fleet()
	if err != nil {
		return err
	}
	before := h.Live
	h.Live = uint32(int(h.Live) + by)
	f.Devices = uint64(int(f.Devices) + by)
	switch {
	case before == 0 && h.Live > 0:
		f.Hosts++
	case before > 0 && h.Live == 0:
		f.Hosts--
	}
	t.put(t.k.meta(record.MetaFleet), f.Encode())
	return nil
}

// fleetChanged tells the leader to read hosts and devices again.
func (t *tx) fleetChanged() {
	t.count[record.CTopology]++
	t.events.DevicesChanged = true
}
