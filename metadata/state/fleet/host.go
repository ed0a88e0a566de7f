package fleet

import (
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
)

// host returns a host's record; nil if there is none.
func host(v *kvtx.View, id string) (*record.Host, error) {
	b, ok, err := v.R.Get(v.K.Host(id))
	if err != nil || !ok {
		return nil, err
	}
	h := &record.Host{Id: id}
	return h, h.Decode(b)
}

// putHost writes a host's record.
func putHost(t *kvtx.Tx, h *record.Host) { t.Put(t.K.Host(h.Id), h.Encode()) }

// Fleet returns the number of registered hosts and devices.
func Fleet(v *kvtx.View) (record.Fleet, error) {
	b, ok, err := v.R.Get(v.K.Meta(record.MetaFleet))
	if err != nil || !ok {
		return record.Fleet{}, err
	}
	var f record.Fleet
	err = f.Decode(b)
	return f, err
}

// hostCount returns how many hosts are registered.
func hostCount(v *kvtx.View) (int, error) {
	f, err := kvtx.Look[record.Fleet](v, v.K.Meta(record.MetaFleet))
	if err != nil || f == nil {
		return 0, err
	}
	return int(f.Hosts), nil
}

// addLive changes the number of a host's devices that are not retired. The caller writes the host.
func addLive(t *kvtx.Tx, h *record.Host, by int) error {
	f, err := Fleet(&t.View)
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
	t.Put(t.K.Meta(record.MetaFleet), f.Encode())
	return nil
}

// fleetChanged notifies the leader to read hosts and devices again.
func fleetChanged(t *kvtx.Tx) {
	t.Count[record.CTopology]++
	t.Events.DevicesChanged = true
}
