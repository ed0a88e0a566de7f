package fleet

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// maxMaintenance is the longest announced absence of a host, in milliseconds: a week.
const maxMaintenance = 7 * 24 * 3600 * 1000

// SetHostState sets the state of all devices of a host that are not retired. If one device must not
// change to it, the command fails and changes none. The undo of a drain leaves devices that the
// drain did not change. Repeating it changes nothing.
func SetHostState(t *kvtx.Tx, op *wire.SetHostState) (*wire.MetaResponse, error) {
	h, err := host(&t.View, op.GetHost())
	if err != nil {
		return nil, err
	}
	if h == nil {
		return nil, kvtx.Fail(moraine.NotFound, "set host state", op.GetHost(), "no host of this name has registered")
	}
	for _, id := range slices.Clone(h.Devices) {
		d, err := Device(&t.View, id)
		if err != nil {
			return nil, err
		}
		if d == nil {
			return nil, kvtx.Corrupt("set host state", h.Id, "the host has device %d, which has no record", id)
		}
		if d.State == record.DeviceRetired {
			continue
		}
		if err := setStateOnHost(t, d, op); err != nil {
			return nil, err
		}
	}
	return kvtx.Done(), nil
}

// setStateOnHost sets the state of one device of a host.
func setStateOnHost(t *kvtx.Tx, d *record.Device, op *wire.SetHostState) error {
	undone := op.GetUndoes()
	switch {
	case d.State == record.DeviceOut && op.GetState() == record.DeviceDraining:
		return drainOnReturn(t, d, op) // it is already draining
	case undone == "" || op.GetState() != record.DeviceIn:
	case d.State == record.DeviceOut && d.Asked == record.DeviceDraining && d.Was == undone:
		d.Asked, d.Was = 0, "" // it returns in
		putDevice(t, d)
		fleetChanged(t)
		return nil
	case d.State != record.DeviceDraining || d.Reason != undone:
		return nil // another request drains it
	}
	_, err := SetDeviceState(t, &wire.SetDeviceState{Device: uint32(d.Id), State: op.GetState(), Reason: op.GetReason(), AcceptLoss: op.GetAcceptLoss()})
	return err
}

// SetMaintenance records until when a host's silence is planned, or that it no longer is. The
// leader has already checked the effect of its absence with the hosts that it named as away. If
// other hosts are away by now it fails with Stale.
func SetMaintenance(t *kvtx.Tx, op *wire.SetMaintenance) (*wire.MetaResponse, error) {
	h, err := host(&t.View, op.GetHost())
	switch {
	case err != nil:
		return nil, err
	case h == nil:
		return nil, kvtx.Fail(moraine.NotFound, "maintenance", op.GetHost(), "no host of this name has registered")
	case op.GetMillis() > maxMaintenance:
		return nil, kvtx.Fail(moraine.InvalidArgument, "maintenance", h.Id, "maintenance lasts at most a week")
	case len(op.GetReason()) > moraine.MaxNameLen:
		return nil, kvtx.Fail(moraine.NameTooLong, "maintenance", h.Id, "the reason has %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	}
	if op.GetMillis() == 0 {
		if h.Away != 0 {
			h.Away, h.AwayWhy = 0, ""
			putHost(t, h)
			fleetChanged(t)
		}
		return kvtx.Done(), nil
	}
	away, err := hostsAway(&t.View, h.Id)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(away, op.GetOthers()) {
		return nil, kvtx.Fail(moraine.Stale, "maintenance", h.Id, "the set of absent hosts changed during the check: repeat the request")
	}
	h.Away, h.AwayWhy = t.ClusterTime()+op.GetMillis(), op.GetReason()
	putHost(t, h)
	fleetChanged(t)
	return kvtx.Done(), nil
}

// hostsAway returns the hosts under maintenance now, except one, in order.
func hostsAway(v *kvtx.View, but string) ([]string, error) {
	c, err := v.Counters()
	if err != nil {
		return nil, err
	}
	var away []string
	prefix := v.K.Table(record.TabHost)
	err = v.EachIn(prefix, func(key, value []byte) (bool, error) {
		h := &record.Host{Id: string(key[len(prefix):])}
		if err := h.Decode(value); err != nil {
			return false, err
		}
		if h.Away > c[record.CClusterTime] && h.Id != but {
			away = append(away, h.Id)
		}
		return true, nil
	})
	return away, err
}

// HostsAway returns the hosts that are announced to be away now, except one.
func HostsAway(r *kvtx.View, but string) ([]string, error) { return hostsAway(r, but) }

// backFromMaintenance ends an announced absence when the host registers after a boot, however much
// time is left. A host that only registers an additional device reports the epochs of the others.
// The caller writes the host.
func backFromMaintenance(h *record.Host, w *wire.Host) {
	goesOn := len(w.GetDevices()) == 0 || slices.ContainsFunc(w.GetDevices(), func(d *wire.Device) bool { return d.GetEpoch() != 0 })
	if h.Away != 0 && !goesOn {
		h.Away, h.AwayWhy = 0, ""
	}
}

// wentElsewhere reports whether a host names a device as broken that another host has now. The disk
// was carried there and the former host does not know yet. That host does not get it back.
func wentElsewhere(d *record.Device, w *wire.Device) bool {
	return d.Host != "" && w.GetState() == record.DeviceOut
}

// distrust records that the leader takes a device out, or drains it, permanently. A restarted
// server does not know that the disk lied or was slow, and would otherwise bring it back in. The
// caller writes the device.
func distrust(d *record.Device, op *wire.SetDeviceState) {
	if op.GetKeep() && (d.State == record.DeviceOut || d.State == record.DeviceDraining) {
		d.Asked = d.State
	}
}
