package fleet

import (
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of a registration.
const (
	// maxHostDevices is the largest number of devices of one host.
	maxHostDevices = 256
	// maxAddresses is the largest number of addresses of one host.
	maxAddresses = 64
)

// Device returns a device's record; nil if there is none.
func Device(v *kvtx.View, id moraine.DeviceID) (*record.Device, error) {
	b, ok, err := v.R.Get(v.K.Device(id))
	if err != nil || !ok {
		return nil, err
	}
	d := &record.Device{Id: id}
	return d, d.Decode(b)
}

// LookDevice is Device for callers that do not change the record.
func LookDevice(v *kvtx.View, id moraine.DeviceID) (*record.Device, error) {
	return kvtx.Look[record.Device](v, v.K.Device(id))
}

// putDevice writes a device's record.
func putDevice(t *kvtx.Tx, d *record.Device) { t.Put(t.K.Device(d.Id), d.Encode()) }

// RegisterHost registers a host and its devices, or updates them: after a boot, at a new address,
// or with a device from another host. A device reports the epoch that it received during this boot,
// or 0 at the first registration. The state increments the epoch unless that is the present one. A
// device that was out returns in, unless its server reports it broken or an administrator requested
// another state. A device that the host no longer names goes out.
func RegisterHost(t *kvtx.Tx, op *wire.RegisterHost) (*wire.MetaResponse, error) {
	w := op.GetHost()
	if err := checkHost(t, op); err != nil {
		return nil, err
	}
	h, err := host(&t.View, w.GetId())
	if err != nil {
		return nil, err
	}
	if h == nil {
		h = &record.Host{Id: w.GetId()}
	}
	had := h.Devices
	h.Rack, h.Addresses, h.Admin, h.Release = w.GetRack(), w.GetAddresses(), w.GetAdminAddress(), op.GetRelease()
	h.Bucket = w.GetBucket()
	backFromMaintenance(h, w)
	reply := &wire.RegisterHostReply{}
	for _, wd := range w.GetDevices() {
		d, err := registerDevice(t, h, wd)
		if err != nil {
			return nil, err
		}
		reply.Devices = append(reply.Devices, d.ToWire())
	}
	slices.Sort(h.Devices)
	putHost(t, h)
	if err := missingDevices(t, h, had, reply.Devices); err != nil {
		return nil, err
	}
	c, err := t.Cluster()
	if err != nil {
		return nil, err
	}
	reply.Cluster, reply.Incarnation = c.Uuid[:], uint64(c.Incarnation)
	fleetChanged(t)
	return &wire.MetaResponse{Result: &wire.MetaResponse_RegisterHost{RegisterHost: reply}}, nil
}

// checkHost checks the fields of a registration, and that the caller may register the host.
func checkHost(t *kvtx.Tx, op *wire.RegisterHost) error {
	w := op.GetHost()
	bad := func(format string, args ...any) error {
		return kvtx.Fail(moraine.InvalidArgument, "register host", w.GetId(), format, args...)
	}
	switch {
	case w.GetId() == "" || len(w.GetId()) > moraine.MaxNameLen || len(w.GetRack()) > moraine.MaxNameLen:
		return bad("the host needs an id; id and rack have at most %d bytes each", moraine.MaxNameLen)
	case t.Caller.GetRole() == kvtx.RoleChunkserver && t.Caller.GetNode() != w.GetId():
		return kvtx.Fail(moraine.PermissionDenied, "register host", w.GetId(), "the certificate is of node %q", t.Caller.GetNode())
	case len(w.GetBucket()) > record.MaxToken || len(w.GetAdminAddress()) > record.MaxToken || len(op.GetRelease()) > record.MaxToken ||
		slices.ContainsFunc(w.GetAddresses(), func(a string) bool { return len(a) > record.MaxToken }):
		return bad("the bucket, the release and each address have at most %d bytes", record.MaxToken)
	case len(w.GetDevices()) > maxHostDevices || len(w.GetAddresses()) > maxAddresses:
		return bad("the host has %d devices and %d addresses; the limits are %d devices and %d addresses", len(w.GetDevices()), len(w.GetAddresses()), maxHostDevices, maxAddresses)
	}
	seen := make(map[string]bool, len(w.GetDevices()))
	for _, d := range w.GetDevices() {
		if len(d.GetUuid()) != len(moraine.UUID{}) || moraine.UUID(d.GetUuid()).IsZero() {
			return bad("each device needs a UUID of 16 bytes")
		}
		if seen[string(d.GetUuid())] {
			return bad("the request has device %s twice", moraine.UUID(d.GetUuid()))
		}
		seen[string(d.GetUuid())] = true
	}
	return nil
}

// registerDevice registers one device on h, which the caller writes.
func registerDevice(t *kvtx.Tx, h *record.Host, w *wire.Device) (*record.Device, error) {
	d, err := deviceByUUID(t, moraine.UUID(w.GetUuid()), moraine.DeviceID(w.GetId()))
	if err != nil {
		return nil, err
	}
	if d.State == record.DeviceRetired {
		return d, nil
	}
	if d.Host != h.Id {
		if wentElsewhere(d, w) {
			return d, nil
		}
		if err := moveDevice(t, d, h); err != nil {
			return nil, err
		}
	}
	d.Capacity = w.GetCapacity()
	if w.GetEpoch() == 0 || moraine.Epoch(w.GetEpoch()) != d.Epoch {
		d.Epoch++
		d.Booted = t.Index
	}
	if back, why := d.ComesBack(); d.State == record.DeviceOut && w.GetState() != record.DeviceOut && back != record.DeviceOut {
		d.State, d.Reason, d.Was = back, why, ""
		if err := scanDevice(t, d); err != nil {
			return nil, err
		}
	}
	putDevice(t, d)
	return d, nil
}

// deviceByUUID finds a device by its UUID, or issues a number for it. If the device had a number in
// an earlier incarnation that this state does not know, it gets that number again if it is free.
func deviceByUUID(t *kvtx.Tx, uuid moraine.UUID, had moraine.DeviceID) (*record.Device, error) {
	b, ok, err := t.Get(t.K.DeviceUUID(uuid))
	if err != nil {
		return nil, err
	}
	if ok {
		id, err := record.DecodeNumber[moraine.DeviceID](record.DeviceVersion, b, "device identity")
		if err != nil {
			return nil, err
		}
		d, err := Device(&t.View, id)
		if err == nil && d == nil {
			err = kvtx.Corrupt("register host", uuid.String(), "the index of UUIDs has device %d, which has no record", id)
		}
		return d, err
	}
	id, err := deviceNumber(t, had)
	if err != nil {
		return nil, err
	}
	d := &record.Device{Id: id, Uuid: uuid, State: record.DeviceIn}
	t.Insert(t.K.DeviceUUID(uuid), record.EncodeNumber(record.DeviceVersion, d.Id))
	return d, nil
}

// deviceNumber issues the number of a new device; had is its earlier number, or 0.
func deviceNumber(t *kvtx.Tx, had moraine.DeviceID) (moraine.DeviceID, error) {
	if had != 0 && uint64(had) <= t.Count[record.CDevice] {
		if other, err := LookDevice(&t.View, had); err != nil || other == nil {
			return had, err
		}
	}
	if t.Count[record.CDevice] >= math.MaxUint32 {
		return 0, kvtx.Fail(moraine.NoSpace, "register host", "", "the cluster has issued all device numbers")
	}
	return moraine.DeviceID(t.Next(record.CDevice)), nil
}

// moveDevice moves a device from its former host to h.
func moveDevice(t *kvtx.Tx, d *record.Device, h *record.Host) error {
	if d.Host != "" {
		old, err := host(&t.View, d.Host)
		if err != nil {
			return err
		}
		if old == nil {
			return kvtx.Corrupt("register host", d.Host, "device %d refers to the host, which has no record", d.Id)
		}
		old.Devices = slices.DeleteFunc(old.Devices, func(id moraine.DeviceID) bool { return id == d.Id })
		if err := addLive(t, old, -1); err != nil {
			return err
		}
		putHost(t, old)
	}
	d.Host = h.Id
	h.Devices = append(h.Devices, d.Id)
	return addLive(t, h, 1)
}

// missingDevices takes out the devices that the host had and did not name.
func missingDevices(t *kvtx.Tx, h *record.Host, had []moraine.DeviceID, named []*wire.Device) error {
	for _, id := range had {
		if slices.ContainsFunc(named, func(d *wire.Device) bool { return d.GetId() == uint32(id) }) {
			continue
		}
		d, err := Device(&t.View, id)
		if err != nil {
			return err
		}
		if d == nil {
			return kvtx.Corrupt("register host", h.Id, "the host has device %d, which has no record", id)
		}
		if !d.Serves() {
			continue
		}
		d.State, d.Reason = record.DeviceOut, "its host started without it"
		if err := scanDevice(t, d); err != nil {
			return err
		}
		putDevice(t, d)
	}
	return nil
}

// SetDeviceState changes a device's state, as maySetState permits, and has its stripes checked
// again. Setting the same state changes nothing, except that an administrator's request is
// recorded: see Device.Asked.
func SetDeviceState(t *kvtx.Tx, op *wire.SetDeviceState) (*wire.MetaResponse, error) {
	id := moraine.DeviceID(op.GetDevice())
	ref := "device " + record.Utoa(uint64(id))
	d, err := Device(&t.View, id)
	if err != nil {
		return nil, err
	}
	switch {
	case d == nil:
		return nil, kvtx.Fail(moraine.NotFound, "set device state", ref, "")
	case len(op.GetReason()) > moraine.MaxNameLen:
		return nil, kvtx.Fail(moraine.NameTooLong, "set device state", ref, "the reason has %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	case t.Caller.GetRole() != kvtx.RoleAdmin && op.GetState() == record.DeviceIn && d.Asked != 0:
		return kvtx.Done(), backFromSilence(t, d) // the leader saw the host return: that does not undo an administrator's request
	}
	if ask(t, d, op) {
		putDevice(t, d)
		fleetChanged(t)
	}
	if op.GetState() == d.State {
		return kvtx.Done(), nil
	}
	if err := maySetState(t, d, op); err != nil {
		return nil, err
	}
	if op.GetState() == record.DeviceRetired {
		h, err := host(&t.View, d.Host)
		if err != nil {
			return nil, err
		}
		if h == nil {
			return nil, kvtx.Corrupt("set device state", d.Host, "device %d refers to the host, which has no record", d.Id)
		}
		if err := addLive(t, h, -1); err != nil {
			return nil, err
		}
		putHost(t, h)
	}
	noteSilence(t, d, op)
	d.State, d.Reason = op.GetState(), op.GetReason()
	if t.Caller.GetRole() == kvtx.RoleAdmin {
		d.Asked = asks(t, d.State)
	} else {
		distrust(d, op)
	}
	if err := scanDevice(t, d); err != nil {
		return nil, err
	}
	putDevice(t, d)
	fleetChanged(t)
	return kvtx.Done(), nil
}

// ask records that an administrator requests the state that the device already has, and why. It
// returns false if that changes nothing.
func ask(t *kvtx.Tx, d *record.Device, op *wire.SetDeviceState) bool {
	asked := asks(t, op.GetState())
	if asked == 0 || op.GetState() != d.State || d.Asked == asked {
		return false
	}
	d.Asked, d.Reason, d.Was = asked, op.GetReason(), ""
	return true
}

// asks returns the state that an administrator's command requests permanently; 0 for none.
func asks(t *kvtx.Tx, to record.DeviceState) record.DeviceState {
	if t.Caller.GetRole() == kvtx.RoleAdmin && (to == record.DeviceOut || to == record.DeviceDraining) {
		return to
	}
	return 0
}

// maySetState fails if a device must not change to a state.
//
//	from       in    out   draining  retired
//	in               yes   yes       if empty
//	out        yes         no        if empty, or an administrator accepts the loss
//	draining   yes   yes             if empty
//	retired    no    no    no
func maySetState(t *kvtx.Tx, d *record.Device, op *wire.SetDeviceState) error {
	to := op.GetState()
	ref := "device " + record.Utoa(uint64(d.Id))
	no := func(why string) error { return kvtx.Fail(moraine.Conflict, "set device state", ref, "%s", why) }
	switch {
	case to != record.DeviceIn && to != record.DeviceOut && to != record.DeviceDraining && to != record.DeviceRetired:
		return kvtx.Fail(moraine.InvalidArgument, "set device state", ref, "device state %d is unknown", to)
	case d.State == record.DeviceRetired:
		return no("the device is retired for good: format it to use its disk again")
	case d.State == record.DeviceOut && to == record.DeviceDraining:
		return no("the device is out, and repair already rebuilds its chunks elsewhere: retire it, or set it in first")
	case to == record.DeviceRetired:
		return mayRetire(t, d, op.GetAcceptLoss(), no)
	}
	return nil
}

// mayRetire fails while a stripe has a chunk on the device: until then its disk can be repaired and
// return, afterwards not. An administrator can accept the loss of a device that is out.
func mayRetire(t *kvtx.Tx, d *record.Device, acceptLoss bool, no func(why string) error) error {
	if d.State == record.DeviceOut && acceptLoss {
		return nil
	}
	keys, err := t.KeysUnder(t.K.DeviceChunks(d.Id), 1)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return mayHoldMore(t, d, no)
	case d.State == record.DeviceOut:
		return no("stripes still have chunks on the device: wait until repair ends (`moraine cluster status --wait`), or abandon the chunks for good with --accept-loss")
	}
	return no("stripes still have chunks on the device: drain it or set it out first")
}

// mayHoldMore fails if the device may have chunks that a restored record needs although no record
// names them. Either it has not reported since the restore, or its report had chunks that fit a
// record whose own chunk is not known to exist.
func mayHoldMore(t *kvtx.Tx, d *record.Device, no func(why string) error) error {
	instead := "; to abandon its chunks, set it out first"
	if d.State == record.DeviceOut {
		instead = ", or abandon its chunks for good with --accept-loss"
	}
	c, err := t.Cluster()
	switch {
	case err != nil:
		return err
	case c.Incarnation > 1 && d.Passed == 0:
		return no("the device has not reported since the restore of the metadata, so its chunks are unknown: wait for its report" + instead)
	case d.Fitting > 0:
		return no("its last report has " + record.Utoa(d.Fitting) + " chunks that damaged stripes may need: set the device in, or wait for repair and its next report" + instead)
	}
	return nil
}

// scanDevice starts a scan of every stripe with a chunk on the device. The caller writes the
// device.
func scanDevice(t *kvtx.Tx, d *record.Device) error {
	if j, err := jobs.Job(&t.View, d.Scan); err != nil {
		return err
	} else if j != nil && j.Live() {
		j.Cursor, j.Done = nil, 0
		jobs.PutJob(t, j)
		t.Events.JobsReady = true
		return nil
	}
	id, err := jobs.AddJob(t, jobs.JobSpec{
		Kind: wire.JobKind_JOB_KIND_SCAN_DEVICE, Subject: "device " + record.Utoa(uint64(d.Id)) + " of " + d.Host,
		Target: uint64(d.Id),
	})
	d.Scan = id
	return err
}
