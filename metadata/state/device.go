package state

import (
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of a registration.
const (
	// MaxHostDevices is the most devices of one host.
	MaxHostDevices = 256
	// MaxAddresses is the most addresses of one host.
	MaxAddresses = 64
)

// device returns a device's record; nil where there is none.
func (v *view) device(id moraine.DeviceID) (*record.Device, error) {
	b, ok, err := v.r.Get(v.k.device(id))
	if err != nil || !ok {
		return nil, err
	}
	d := &record.Device{Id: id}
	return d, d.Decode(b)
}

// lookDevice is device for those who do not change it, and know its number.
func (v *view) lookDevice(id moraine.DeviceID) (*record.Device, error) {
	return look[record.Device](v, v.k.device(id))
}

func (t *tx) putDevice(d *record.Device) { t.put(t.k.device(d.Id), d.Encode()) }

// registerHost makes a host and its devices known, or known anew: at a new
// address, with a device that came from another host, after a new boot. A
// device says the boot epoch that this boot was given before, and 0 the first
// time: the epoch is raised unless it is the present one. A device that was out
// is in again, unless its server says that it is broken or an administrator
// asked for another state; one that the host had and does not name any more is out.
func (m *Machine) registerHost(t *tx, op *wire.RegisterHost) (*wire.MetaResponse, error) {
	w := op.GetHost()
	if err := m.checkHost(t, op); err != nil {
		return nil, err
	}
	h, err := t.host(w.GetId())
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
		d, err := m.registerDevice(t, h, wd)
		if err != nil {
			return nil, err
		}
		reply.Devices = append(reply.Devices, d.ToWire())
	}
	slices.Sort(h.Devices)
	t.putHost(h)
	if err := m.missingDevices(t, h, had, reply.Devices); err != nil {
		return nil, err
	}
	c, err := t.cluster()
	if err != nil {
		return nil, err
	}
	reply.Cluster, reply.Incarnation = c.Uuid[:], uint64(c.Incarnation)
	t.fleetChanged()
	return &wire.MetaResponse{Result: &wire.MetaResponse_RegisterHost{RegisterHost: reply}}, nil
}

func (m *Machine) checkHost(t *tx, op *wire.RegisterHost) error {
	w := op.GetHost()
	bad := func(format string, args ...any) error {
		return fail(moraine.InvalidArgument, "register host", w.GetId(), format, args...)
	}
	switch {
	case w.GetId() == "" || len(w.GetId()) > moraine.MaxNameLen || len(w.GetRack()) > moraine.MaxNameLen:
		return bad("a host needs an id, of %d bytes at most, as its rack", moraine.MaxNameLen)
	case t.caller.GetRole() == roleChunkserver && t.caller.GetNode() != w.GetId():
		return fail(moraine.PermissionDenied, "register host", w.GetId(), "the caller is %q", t.caller.GetNode())
	case len(w.GetBucket()) > record.MaxToken || len(w.GetAdminAddress()) > record.MaxToken || len(op.GetRelease()) > record.MaxToken ||
		slices.ContainsFunc(w.GetAddresses(), func(a string) bool { return len(a) > record.MaxToken }):
		return bad("its bucket, release and addresses have %d bytes each at most", record.MaxToken)
	case len(w.GetDevices()) > MaxHostDevices || len(w.GetAddresses()) > MaxAddresses:
		return bad("%d devices and %d addresses; %d and %d at most", len(w.GetDevices()), len(w.GetAddresses()), MaxHostDevices, MaxAddresses)
	}
	seen := make(map[string]bool, len(w.GetDevices()))
	for _, d := range w.GetDevices() {
		if len(d.GetUuid()) != len(moraine.UUID{}) || moraine.UUID(d.GetUuid()).IsZero() {
			return bad("a device needs a UUID of 16 bytes")
		}
		if seen[string(d.GetUuid())] {
			return bad("device %s is named twice", moraine.UUID(d.GetUuid()))
		}
		seen[string(d.GetUuid())] = true
	}
	return nil
}

// The roles of a chunkserver's certificate and of an administrator's.
const (
	roleChunkserver = "chunkserver"
	roleAdmin       = "admin"
)

// registerDevice makes one device known on h, which the caller writes.
func (m *Machine) registerDevice(t *tx, h *record.Host, w *wire.Device) (*record.Device, error) {
	d, err := m.deviceByUUID(t, moraine.UUID(w.GetUuid()), moraine.DeviceID(w.GetId()))
	if err != nil {
		return nil, err
	}
	if d.State == record.DeviceRetired {
		return d, nil
	}
	if d.Host != h.Id {
		if gone, err := m.wentElsewhere(t, d, w); err != nil || gone {
			return d, err
		}
		if err := m.moveDevice(t, d, h); err != nil {
			return nil, err
		}
	}
	d.Capacity = w.GetCapacity()
	if w.GetEpoch() == 0 || moraine.Epoch(w.GetEpoch()) != d.Epoch {
		d.Epoch++
		d.Booted = t.index
	}
	if back, why := d.ComesBack(); d.State == record.DeviceOut && w.GetState() != record.DeviceOut && back != record.DeviceOut {
		d.State, d.Reason, d.Was = back, why, ""
		if err := m.scanDevice(t, d); err != nil {
			return nil, err
		}
	}
	t.putDevice(d)
	return d, nil
}

// deviceByUUID finds a device by its identity, or issues a number for it: the one that it
// had in an earlier incarnation, which this state does not know of, where that is free.
func (m *Machine) deviceByUUID(t *tx, uuid moraine.UUID, had moraine.DeviceID) (*record.Device, error) {
	b, ok, err := t.Get(t.k.deviceUUID(uuid))
	if err != nil {
		return nil, err
	}
	if ok {
		r := record.Dec{B: b}
		r.Version(record.DeviceVersion)
		id := moraine.DeviceID(r.U32())
		if err := r.End("device identity"); err != nil {
			return nil, err
		}
		d, err := t.device(id)
		if err == nil && d == nil {
			err = &moraine.Error{Op: "register host", Ref: uuid.String(), Kind: moraine.Corrupt}
		}
		return d, err
	}
	id, err := t.deviceNumber(had)
	if err != nil {
		return nil, err
	}
	d := &record.Device{Id: id, Uuid: uuid, State: record.DeviceIn}
	t.insert(t.k.deviceUUID(uuid), record.PutUvarint([]byte{record.DeviceVersion}, uint64(d.Id)))
	return d, nil
}

// deviceNumber issues the number of a new device; had is one that it had before, or 0.
func (t *tx) deviceNumber(had moraine.DeviceID) (moraine.DeviceID, error) {
	if had != 0 && uint64(had) <= t.count[record.CDevice] {
		if other, err := t.lookDevice(had); err != nil || other == nil {
			return had, err
		}
	}
	if t.count[record.CDevice] >= math.MaxUint32 {
		return 0, fail(moraine.NoSpace, "register host", "", "there are no device numbers left")
	}
	return moraine.DeviceID(t.next(record.CDevice)), nil
}

// moveDevice takes a device from the host that had it to h.
func (m *Machine) moveDevice(t *tx, d *record.Device, h *record.Host) error {
	if d.Host != "" {
		old, err := t.host(d.Host)
		if err != nil {
			return err
		}
		if old == nil {
			return &moraine.Error{Op: "register host", Ref: d.Host, Kind: moraine.Corrupt}
		}
		old.Devices = slices.DeleteFunc(old.Devices, func(id moraine.DeviceID) bool { return id == d.Id })
		if err := t.addLive(old, -1); err != nil {
			return err
		}
		t.putHost(old)
	}
	d.Host = h.Id
	h.Devices = append(h.Devices, d.Id)
	return t.addLive(h, 1)
}

// missingDevices declares out what the host had and did not name.
func (m *Machine) missingDevices(t *tx, h *record.Host, had []moraine.DeviceID, named []*wire.Device) error {
	for _, id := range had {
		if slices.ContainsFunc(named, func(d *wire.Device) bool { return d.GetId() == uint32(id) }) {
			continue
		}
		d, err := t.device(id)
		if err != nil {
			return err
		}
		if d == nil {
			return &moraine.Error{Op: "register host", Ref: h.Id, Kind: moraine.Corrupt}
		}
		if !d.Serves() {
			continue
		}
		d.State, d.Reason = record.DeviceOut, "its host started without it"
		if err := m.scanDevice(t, d); err != nil {
			return err
		}
		t.putDevice(d)
	}
	return nil
}

// setDeviceState moves a device between its states, as maySetState allows, and
// has its stripes judged anew. The same state again changes nothing, but that
// an administrator's word stays: see device.asked.
func (m *Machine) setDeviceState(t *tx, op *wire.SetDeviceState) (*wire.MetaResponse, error) {
	id := moraine.DeviceID(op.GetDevice())
	ref := "device " + record.Utoa(uint64(id))
	d, err := t.device(id)
	if err != nil {
		return nil, err
	}
	switch {
	case d == nil:
		return nil, fail(moraine.NotFound, "set device state", ref, "")
	case len(op.GetReason()) > moraine.MaxNameLen:
		return nil, fail(moraine.NameTooLong, "set device state", ref, "a reason of %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	case t.caller.GetRole() != roleAdmin && op.GetState() == record.DeviceIn && d.Asked != 0:
		return done(), m.backFromSilence(t, d) // the leader finds its host back: that does not undo the word of a person
	}
	if m.ask(t, d, op) {
		t.putDevice(d)
		t.fleetChanged()
	}
	if op.GetState() == d.State {
		return done(), nil
	}
	if err := m.maySetState(t, d, op); err != nil {
		return nil, err
	}
	if op.GetState() == record.DeviceRetired {
		h, err := t.host(d.Host)
		if err != nil {
			return nil, err
		}
		if h == nil {
			return nil, &moraine.Error{Op: "set device state", Ref: d.Host, Kind: moraine.Corrupt}
		}
		if err := t.addLive(h, -1); err != nil {
			return nil, err
		}
		t.putHost(h)
	}
	if err := m.noteSilence(t, d, op); err != nil {
		return nil, err
	}
	d.State, d.Reason = op.GetState(), op.GetReason()
	if t.caller.GetRole() == roleAdmin {
		d.Asked = m.asks(t, d.State)
	} else if err := m.distrust(t, d, op); err != nil {
		return nil, err
	}
	if err := m.scanDevice(t, d); err != nil {
		return nil, err
	}
	t.putDevice(d)
	t.fleetChanged()
	return done(), nil
}

// ask notes what state an administrator wants of a device that is in that state
// already, and why; false: there is nothing new to note.
func (m *Machine) ask(t *tx, d *record.Device, op *wire.SetDeviceState) bool {
	asked := m.asks(t, op.GetState())
	if asked == 0 || op.GetState() != d.State || d.Asked == asked {
		return false
	}
	d.Asked, d.Reason, d.Was = asked, op.GetReason(), ""
	return true
}

// asks returns what an administrator's command asks for for good, 0 for nothing.
// In clusters begun by a build that did not keep it (those have no cNames), the
// next registration undoes it: their logs must lead to the state they led to.
func (m *Machine) asks(t *tx, to record.DeviceState) record.DeviceState {
	if t.caller.GetRole() == roleAdmin && t.count[record.CNames] != 0 && (to == record.DeviceOut || to == record.DeviceDraining) {
		return to
	}
	return 0
}

// maySetState fails where a device must not go to a state.
//
//	from       in    out   draining  retired
//	in               yes   yes       if empty
//	out        yes         no        if empty, or a person gives up what it has
//	draining   yes   yes             if empty
//	retired    no    no    no
func (m *Machine) maySetState(t *tx, d *record.Device, op *wire.SetDeviceState) error {
	to := op.GetState()
	ref := "device " + record.Utoa(uint64(d.Id))
	no := func(why string) error { return fail(moraine.Conflict, "set device state", ref, "%s", why) }
	switch {
	case to != record.DeviceIn && to != record.DeviceOut && to != record.DeviceDraining && to != record.DeviceRetired:
		return fail(moraine.InvalidArgument, "set device state", ref, "state %d", to)
	case d.State == record.DeviceRetired:
		return no("it is retired, for good: format it to use the disk again")
	case d.State == record.DeviceOut && to == record.DeviceDraining:
		return no("it is out and is being rebuilt elsewhere already; retire it, or bring it back first")
	case to == record.DeviceRetired:
		return m.mayRetire(t, d, op.GetAcceptLoss(), no)
	}
	return nil
}

// mayRetire fails while a stripe has a chunk on the device: its disk can be mended and come
// back until then, and not afterwards. One that is out may be given up with what it has.
func (m *Machine) mayRetire(t *tx, d *record.Device, acceptLoss bool, no func(why string) error) error {
	if d.State == record.DeviceOut {
		knows, err := t.speaks(levelKeepsChunks)
		if err != nil || !knows || acceptLoss {
			return err
		}
	}
	keys, err := t.keysUnder(t.k.deviceChunks(d.Id), 1)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return m.mayHoldMore(t, d, no)
	case d.State == record.DeviceOut:
		return no("stripes still have chunks on it: wait until `moraine cluster status` tells of none that waits for repair or has too few chunks left, or give up, for good, what is left on it with --accept-loss")
	}
	return no("it still holds chunks: drain it first, or declare it out")
}

// mayHoldMore fails where no record names a chunk on the device, and it may have some that a
// restored record needs: it has not reported since the restore, or its report had chunks that
// fit a record whose own chunk is not known to be there.
func (m *Machine) mayHoldMore(t *tx, d *record.Device, no func(why string) error) error {
	instead := "; set it out first to give it up with what it has"
	if d.State == record.DeviceOut {
		instead = ", or give up, for good, what is on it with --accept-loss"
	}
	c, err := t.cluster()
	switch {
	case err != nil:
		return err
	case c.Incarnation > 1 && d.Passed == 0:
		return no("it has not reported since the metadata was restored, and what it holds is not known: wait for its report" + instead)
	case d.Fitting > 0:
		return no("by its last report it has " + record.Utoa(d.Fitting) + " chunks that may be all that is left of what a stripe has lost: set it in to have them taken up, or wait until the stripes are rebuilt and it has reported again" + instead)
	}
	return nil
}

// scanDevice has every stripe with a chunk on the device judged from the start.
// The caller writes the device.
func (m *Machine) scanDevice(t *tx, d *record.Device) error {
	if j, err := t.job(d.Scan); err != nil {
		return err
	} else if j != nil && j.Live() {
		j.Cursor, j.Done = nil, 0
		t.putJob(j)
		t.events.JobsReady = true
		return nil
	}
	id, err := m.addJob(t, jobSpec{
		kind: wire.JobKind_JOB_KIND_SCAN_DEVICE, subject: "device " + record.Utoa(uint64(d.Id)) + " of " + d.Host,
		target: uint64(d.Id),
	})
	d.Scan = id
	return err
}
