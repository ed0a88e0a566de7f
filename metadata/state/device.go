package state

import (
	"math"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Bounds of a registration.
const (
	// MaxHostDevices is the most devices of one host.
	MaxHostDevices = 256
	// MaxAddresses is the most addresses of one host.
	MaxAddresses = 64
)

// deviceState is a wire.DeviceState.
type deviceState = wire.DeviceState

const (
	deviceIn       = wire.DeviceState_DEVICE_STATE_IN
	deviceOut      = wire.DeviceState_DEVICE_STATE_OUT
	deviceDraining = wire.DeviceState_DEVICE_STATE_DRAINING
	deviceRetired  = wire.DeviceState_DEVICE_STATE_RETIRED
)

// device is the record of one device.
type device struct {
	id    moraine.DeviceID // in the key
	uuid  moraine.UUID
	host  string
	state deviceState
	// asked is the state that an administrator set: out or draining. It holds
	// until an administrator sets another one, whatever the device's host says
	// or leaves unsaid meanwhile. 0: nobody asked for anything.
	asked deviceState
	// was is why it is drained, of a device that is out for as long as its host is
	// silent.
	was      string
	capacity uint64 // bytes, as of its last registration
	// epoch is raised by the first registration of each boot of its host.
	epoch  moraine.Epoch
	reason string // of its state
	// passed is the log index that the last full report of its chunks began
	// after; it explains everything that ended before.
	passed uint64
	// Of the last full report: what nothing explains.
	unknownBytes, unknownChunks uint64
	// scan is the job that judges its stripes, or last did.
	scan moraine.JobID
	// booted is the log index at which its present boot epoch, or the incarnation, began;
	// reported is the one that its last whole report began after.
	booted, reported uint64
	// fitting is how many chunks of the last full report fit a record, were not adopted, and
	// may be the only whole copy.
	fitting uint64
}

const deviceVersion = 1

func (d *device) encode() []byte {
	b := make([]byte, 0, 64+len(d.host)+len(d.reason)+len(d.was))
	b = append(b, deviceVersion)
	b = append(b, d.uuid[:]...)
	b = putString(b, d.host)
	b = append(b, byte(d.state)|byte(d.asked)<<4)
	b = putUvarint(b, d.capacity)
	b = putUvarint(b, uint64(d.epoch))
	b = putString(b, d.reason)
	b = putUvarint(b, d.passed)
	b = putUvarint(b, d.unknownBytes)
	b = putUvarint(b, d.unknownChunks)
	b = putFixed64(b, uint64(d.scan))
	b = putUvarint(b, d.booted)
	b = putUvarint(b, d.reported)
	return putUvarint(putString(b, d.was), d.fitting)
}

func (d *device) decode(b []byte) error {
	r := dec{b: b}
	r.version(deviceVersion)
	for i := range d.uuid {
		d.uuid[i] = r.byte()
	}
	d.host = r.string()
	state := r.byte()
	d.state, d.asked = deviceState(state&0xf), deviceState(state>>4)
	d.capacity = r.uvarint()
	d.epoch = moraine.Epoch(r.uvarint())
	d.reason = r.string()
	d.passed = r.uvarint()
	d.unknownBytes = r.uvarint()
	d.unknownChunks = r.uvarint()
	d.scan = moraine.JobID(r.fixed64())
	d.booted, d.reported = r.uvarint(), r.uvarint()
	d.was, d.fitting = r.string(), r.uvarint()
	return r.end("device")
}

func (d *device) toWire() *wire.Device {
	return &wire.Device{Id: uint32(d.id), Uuid: d.uuid[:], Host: d.host, State: d.state, Capacity: d.capacity, Epoch: uint64(d.epoch), Reason: d.reason, Reported: d.isReported()}
}

// isReported reports whether a whole report of its chunks was judged since it booted, in
// this incarnation: what is missing on it is known.
func (d *device) isReported() bool { return d.reported >= d.booted }

// serves reports whether what the device holds counts.
func (d *device) serves() bool { return d.state == deviceIn || d.state == deviceDraining }

// device returns a device's record; nil where there is none.
func (v *view) device(id moraine.DeviceID) (*device, error) {
	b, ok, err := v.r.Get(v.k.device(id))
	if err != nil || !ok {
		return nil, err
	}
	d := &device{id: id}
	return d, d.decode(b)
}

// lookDevice is device for those who do not change it, and know its number.
func (v *view) lookDevice(id moraine.DeviceID) (*device, error) {
	return look[device](v, v.k.device(id))
}

func (t *tx) putDevice(d *device) { t.put(t.k.device(d.id), d.encode()) }

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
		h = &host{id: w.GetId()}
	}
	had := h.devices
	h.rack, h.addresses, h.admin, h.release = w.GetRack(), w.GetAddresses(), w.GetAdminAddress(), op.GetRelease()
	h.bucket = w.GetBucket()
	backFromMaintenance(h, w)
	reply := &wire.RegisterHostReply{}
	for _, wd := range w.GetDevices() {
		d, err := m.registerDevice(t, h, wd)
		if err != nil {
			return nil, err
		}
		reply.Devices = append(reply.Devices, d.toWire())
	}
	slices.Sort(h.devices)
	t.putHost(h)
	if err := m.missingDevices(t, h, had, reply.Devices); err != nil {
		return nil, err
	}
	c, err := t.cluster()
	if err != nil {
		return nil, err
	}
	reply.Cluster, reply.Incarnation = c.uuid[:], uint64(c.incarnation)
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
	case len(w.GetBucket()) > maxToken || len(w.GetAdminAddress()) > maxToken || len(op.GetRelease()) > maxToken ||
		slices.ContainsFunc(w.GetAddresses(), func(a string) bool { return len(a) > maxToken }):
		return bad("its bucket, release and addresses have %d bytes each at most", maxToken)
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
func (m *Machine) registerDevice(t *tx, h *host, w *wire.Device) (*device, error) {
	d, err := m.deviceByUUID(t, moraine.UUID(w.GetUuid()), moraine.DeviceID(w.GetId()))
	if err != nil {
		return nil, err
	}
	if d.state == deviceRetired {
		return d, nil
	}
	if d.host != h.id {
		if gone, err := m.wentElsewhere(t, d, w); err != nil || gone {
			return d, err
		}
		if err := m.moveDevice(t, d, h); err != nil {
			return nil, err
		}
	}
	d.capacity = w.GetCapacity()
	if w.GetEpoch() == 0 || moraine.Epoch(w.GetEpoch()) != d.epoch {
		d.epoch++
		d.booted = t.index
	}
	if back, why := d.comesBack(); d.state == deviceOut && w.GetState() != deviceOut && back != deviceOut {
		d.state, d.reason, d.was = back, why, ""
		if err := m.scanDevice(t, d); err != nil {
			return nil, err
		}
	}
	t.putDevice(d)
	return d, nil
}

// deviceByUUID finds a device by its identity, or issues a number for it: the one that it
// had in an earlier incarnation, which this state does not know of, where that is free.
func (m *Machine) deviceByUUID(t *tx, uuid moraine.UUID, had moraine.DeviceID) (*device, error) {
	b, ok, err := t.Get(t.k.deviceUUID(uuid))
	if err != nil {
		return nil, err
	}
	if ok {
		r := dec{b: b}
		r.version(deviceVersion)
		id := moraine.DeviceID(r.u32())
		if err := r.end("device identity"); err != nil {
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
	d := &device{id: id, uuid: uuid, state: deviceIn}
	t.insert(t.k.deviceUUID(uuid), putUvarint([]byte{deviceVersion}, uint64(d.id)))
	return d, nil
}

// deviceNumber issues the number of a new device; had is one that it had before, or 0.
func (t *tx) deviceNumber(had moraine.DeviceID) (moraine.DeviceID, error) {
	if had != 0 && uint64(had) <= t.count[cDevice] {
		if other, err := t.lookDevice(had); err != nil || other == nil {
			return had, err
		}
	}
	if t.count[cDevice] >= math.MaxUint32 {
		return 0, fail(moraine.NoSpace, "register host", "", "there are no device numbers left")
	}
	return moraine.DeviceID(t.next(cDevice)), nil
}

// moveDevice takes a device from the host that had it to h.
func (m *Machine) moveDevice(t *tx, d *device, h *host) error {
	if d.host != "" {
		old, err := t.host(d.host)
		if err != nil {
			return err
		}
		if old == nil {
			return &moraine.Error{Op: "register host", Ref: d.host, Kind: moraine.Corrupt}
		}
		old.devices = slices.DeleteFunc(old.devices, func(id moraine.DeviceID) bool { return id == d.id })
		if err := t.addLive(old, -1); err != nil {
			return err
		}
		t.putHost(old)
	}
	d.host = h.id
	h.devices = append(h.devices, d.id)
	return t.addLive(h, 1)
}

// missingDevices declares out what the host had and did not name.
func (m *Machine) missingDevices(t *tx, h *host, had []moraine.DeviceID, named []*wire.Device) error {
	for _, id := range had {
		if slices.ContainsFunc(named, func(d *wire.Device) bool { return d.GetId() == uint32(id) }) {
			continue
		}
		d, err := t.device(id)
		if err != nil {
			return err
		}
		if d == nil {
			return &moraine.Error{Op: "register host", Ref: h.id, Kind: moraine.Corrupt}
		}
		if !d.serves() {
			continue
		}
		d.state, d.reason = deviceOut, "its host started without it"
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
	ref := "device " + utoa(uint64(id))
	d, err := t.device(id)
	if err != nil {
		return nil, err
	}
	switch {
	case d == nil:
		return nil, fail(moraine.NotFound, "set device state", ref, "")
	case len(op.GetReason()) > moraine.MaxNameLen:
		return nil, fail(moraine.NameTooLong, "set device state", ref, "a reason of %d bytes, %d at most", len(op.GetReason()), moraine.MaxNameLen)
	case t.caller.GetRole() != roleAdmin && op.GetState() == deviceIn && d.asked != 0:
		return done(), m.backFromSilence(t, d) // the leader finds its host back: that does not undo the word of a person
	}
	if m.ask(t, d, op) {
		t.putDevice(d)
		t.fleetChanged()
	}
	if op.GetState() == d.state {
		return done(), nil
	}
	if err := m.maySetState(t, d, op); err != nil {
		return nil, err
	}
	if op.GetState() == deviceRetired {
		h, err := t.host(d.host)
		if err != nil {
			return nil, err
		}
		if h == nil {
			return nil, &moraine.Error{Op: "set device state", Ref: d.host, Kind: moraine.Corrupt}
		}
		if err := t.addLive(h, -1); err != nil {
			return nil, err
		}
		t.putHost(h)
	}
	if err := m.noteSilence(t, d, op); err != nil {
		return nil, err
	}
	d.state, d.reason = op.GetState(), op.GetReason()
	if t.caller.GetRole() == roleAdmin {
		d.asked = m.asks(t, d.state)
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
func (m *Machine) ask(t *tx, d *device, op *wire.SetDeviceState) bool {
	asked := m.asks(t, op.GetState())
	if asked == 0 || op.GetState() != d.state || d.asked == asked {
		return false
	}
	d.asked, d.reason, d.was = asked, op.GetReason(), ""
	return true
}

// asks returns what an administrator's command asks for for good, 0 for nothing.
// In clusters begun by a build that did not keep it (those have no cNames), the
// next registration undoes it: their logs must lead to the state they led to.
func (m *Machine) asks(t *tx, to deviceState) deviceState {
	if t.caller.GetRole() == roleAdmin && t.count[cNames] != 0 && (to == deviceOut || to == deviceDraining) {
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
func (m *Machine) maySetState(t *tx, d *device, op *wire.SetDeviceState) error {
	to := op.GetState()
	ref := "device " + utoa(uint64(d.id))
	no := func(why string) error { return fail(moraine.Conflict, "set device state", ref, "%s", why) }
	switch {
	case to != deviceIn && to != deviceOut && to != deviceDraining && to != deviceRetired:
		return fail(moraine.InvalidArgument, "set device state", ref, "state %d", to)
	case d.state == deviceRetired:
		return no("it is retired, for good: format it to use the disk again")
	case d.state == deviceOut && to == deviceDraining:
		return no("it is out and is being rebuilt elsewhere already; retire it, or bring it back first")
	case to == deviceRetired:
		return m.mayRetire(t, d, op.GetAcceptLoss(), no)
	}
	return nil
}

// mayRetire fails while a stripe has a chunk on the device: its disk can be mended and come
// back until then, and not afterwards. One that is out may be given up with what it has.
func (m *Machine) mayRetire(t *tx, d *device, acceptLoss bool, no func(why string) error) error {
	if d.state == deviceOut {
		knows, err := t.speaks(levelKeepsChunks)
		if err != nil || !knows || acceptLoss {
			return err
		}
	}
	keys, err := t.keysUnder(t.k.deviceChunks(d.id), 1)
	switch {
	case err != nil:
		return err
	case len(keys) == 0:
		return m.mayHoldMore(t, d, no)
	case d.state == deviceOut:
		return no("stripes still have chunks on it: wait until `moraine cluster status` tells of none that waits for repair or has too few chunks left, or give up, for good, what is left on it with --accept-loss")
	}
	return no("it still holds chunks: drain it first, or declare it out")
}

// mayHoldMore fails where no record names a chunk on the device, and it may have some that a
// restored record needs: it has not reported since the restore, or its report had chunks that
// fit a record whose own chunk is not known to be there.
func (m *Machine) mayHoldMore(t *tx, d *device, no func(why string) error) error {
	instead := "; set it out first to give it up with what it has"
	if d.state == deviceOut {
		instead = ", or give up, for good, what is on it with --accept-loss"
	}
	c, err := t.cluster()
	switch {
	case err != nil:
		return err
	case c.incarnation > 1 && d.passed == 0:
		return no("it has not reported since the metadata was restored, and what it holds is not known: wait for its report" + instead)
	case d.fitting > 0:
		return no("by its last report it has " + utoa(d.fitting) + " chunks that may be all that is left of what a stripe has lost: set it in to have them taken up, or wait until the stripes are rebuilt and it has reported again" + instead)
	}
	return nil
}

// scanDevice has every stripe with a chunk on the device judged from the start.
// The caller writes the device.
func (m *Machine) scanDevice(t *tx, d *device) error {
	if j, err := t.job(d.scan); err != nil {
		return err
	} else if j != nil && j.live() {
		j.cursor, j.done = nil, 0
		t.putJob(j)
		t.events.JobsReady = true
		return nil
	}
	id, err := m.addJob(t, jobSpec{
		kind: wire.JobKind_JOB_KIND_SCAN_DEVICE, subject: "device " + utoa(uint64(d.id)) + " of " + d.host,
		target: uint64(d.id),
	})
	d.scan = id
	return err
}
