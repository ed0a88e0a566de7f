package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/place"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// topology is the leader's view of hosts and devices: the registrations, which are also in the
// state, and the heartbeats, which are only here.
type topology struct {
	suspect time.Duration

	mu      sync.Mutex
	version uint64 // the term in the upper half, so that it grows across leaders
	hosts   map[string]*host
	stale   bool // usage has changed since the view was made
	first   bool // some of it is the first report of a device's host
	slow    slowness
	// clusterTime is the cluster time of the last judgement. back is the cluster
	// time of the first judgement after a host returned, or this leader began.
	// came says that a host returned since the last judgement.
	clusterTime, back uint64
	came              bool
	requests          atomic.Uint64   // last mark issued: see Mark
	avoided           map[string]bool // hosts that peers cannot reach: nothing new is placed on them

	current atomic.Pointer[View]
}

// View is an immutable topology at one moment.
type View struct {
	Wire      *wire.Topology
	Place     *place.Topology
	Hosts     map[string]*wire.Host
	Devices   map[uint32]*wire.Device
	Live      int // hosts up, or assumed to be
	reporting int // hosts up that have reported to this leader
	Counted   int // hosts and devices that count for the default scheme
	disks     int
	mean      float64         // mean fill of the devices
	guessed   map[uint32]bool // devices that are assumed to have that fill
	avoided   map[string]bool // as in topology
}

// host is the leader's knowledge of one registered host.
type host struct {
	record   *wire.Host // its registration; never changed in place
	lastSeen time.Time  // time of its last heartbeat, or when this leader began
	spoke    bool       // lastSeen is from a heartbeat or a registration
	seq      uint64     // mark of the request in which it was last seen: see topology.Mark
	booted   bool       // its last heartbeat was from the registered boot
	alive    bool
	usage    map[uint32]usage
	freed    map[uint32][]freed
}

// freed is the size of a deletion on a device that the host's last report may not include yet.
type freed struct {
	at    time.Time // time of the acknowledgement
	bytes uint64
}

// maxFreed bounds these per device. More are merged into one, at the time of the last.
const maxFreed = 16

// usage is a heartbeat's report on a device.
type usage struct {
	capacity, used, chunks uint64
	failed                 bool // its server took it out of service
	distrusted             bool // permanently
	why                    string
	putMicros, corrupt     uint64
	readMicros             [wire.ReadClasses]uint64
	scrub                  scrubbed
	health                 string // encoded
}

// scrubbed is a comparable wire.Scrub.
type scrubbed struct {
	lastDone, started                  int64
	lastBytes, lastBad                 uint64
	chunks, bytes, bad, bytesPerSecond uint64
	running                            bool
}

// NewTopology makes an empty topology for a term.
func NewTopology(term uint64, suspect time.Duration) *topology {
	t := &topology{suspect: suspect, version: term << 32, hosts: make(map[string]*host), came: true}
	t.publish()
	return t
}

// View returns the present view.
func (t *topology) View() *View { return t.current.Load() }

// Load loads the hosts and devices of the state. A host that is new to this leader counts as up for
// a term.
func (t *topology) Load(records []*wire.Host, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := make(map[string]bool, len(records))
	for _, r := range records {
		known[r.Id] = true
		h := t.hosts[r.Id]
		if h == nil {
			h = &host{lastSeen: now, alive: true, usage: make(map[uint32]usage), freed: make(map[uint32][]freed)}
			t.hosts[r.Id] = h
		}
		h.record = r
	}
	for id := range t.hosts {
		if !known[id] {
			delete(t.hosts, id)
		}
	}
	t.changed()
}

// Mark orders requests: a later request has a greater mark. A request takes its mark on arrival,
// before it waits for anything.
func (t *topology) Mark() uint64 { return t.requests.Add(1) }

// NoteHeartbeat records a heartbeat, or a registration, that arrived at a mark. It returns false if
// the host is not registered.
func (t *topology) NoteHeartbeat(id string, devices []*wire.Device, mark uint64, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[id]
	if h == nil {
		return false
	}
	known := h.spoke && h.booted
	h.lastSeen, h.spoke, h.seq, h.booted = now, true, max(h.seq, mark), true
	for _, d := range devices {
		i := slices.IndexFunc(h.record.Devices, func(r *wire.Device) bool { return r.Id == d.Id })
		if i < 0 || h.record.Devices[i].Epoch != d.Epoch {
			h.booted = false // the host must register again
		}
	}
	if h.booted != known {
		t.stale, t.first = true, true
	}
	for _, d := range devices {
		if !slices.ContainsFunc(h.record.Devices, func(r *wire.Device) bool { return r.Id == d.Id }) {
			continue // it belongs to another host
		}
		u := usageOf(d)
		if _, before := h.usage[d.Id]; !before || h.usage[d.Id] != u {
			h.usage[d.Id], t.stale, t.first = u, true, t.first || !before
		}
		// A host measures its devices before it sends the heartbeat, and the heartbeat travels no
		// longer than a host may be silent.
		h.freed[d.Id] = slices.DeleteFunc(h.freed[d.Id], func(f freed) bool { return now.Sub(f.at) >= t.suspect })
		if len(h.freed[d.Id]) == 0 {
			delete(h.freed, d.Id)
		}
	}
	if !h.alive {
		h.alive, t.came = true, true
		t.changed()
	}
	return true
}

// CameBack returns when, in cluster time, a host last returned. Earlier attempts to read its chunks
// prove nothing.
func (t *topology) CameBack() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.back
}

// deleted records how many bytes of chunks a host deleted on its devices. Its reports on the wire
// may still count them for a while.
func (t *topology) deleted(id string, bytes map[uint32]uint64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[id]
	if h == nil {
		return
	}
	for d, n := range bytes {
		if _, ok := h.usage[d]; !ok {
			continue
		}
		list := h.freed[d]
		if len(list) == maxFreed {
			n += list[maxFreed-1].bytes
			list = list[:maxFreed-1]
		}
		h.freed[d] = append(list, freed{now, n})
	}
}

// Fillings returns how full each device is that is in service and up, by its host's last report and
// without what was deleted since. It marks the devices that may give or take chunks for balance,
// fullest first. It omits devices that are draining, out, on a silent host or on one announced to
// be away. unsure says that better data on some devices will arrive soon.
func (t *topology) Fillings() (v *View, out []Filling, unsure bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, h := range t.hosts {
		if !h.alive || h.record.MaintenanceUntil > t.clusterTime {
			continue
		}
		for _, d := range h.record.Devices {
			u, reported := h.usage[d.Id]
			if d.State != DeviceIn || u.failed {
				continue
			}
			if !reported || u.capacity == 0 {
				unsure = unsure || !reported
				continue
			}
			used := u.used
			for _, f := range h.freed[d.Id] {
				used, unsure = used-min(used, f.bytes), true
			}
			out = append(out, Filling{Id: d.Id, Host: id, Rack: h.record.Rack, Capacity: u.capacity, Used: used, Gives: true, Takes: !t.avoided[id]})
		}
	}
	slices.SortFunc(out, func(x, y Filling) int { return cmp.Or(ByFill(&y, &x), cmp.Compare(x.Id, y.Id)) })
	return t.View(), out, unsure
}

// Calm reports whether every host with devices in use is up, and none is announced to be away.
func (t *topology) Calm() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calmLocked()
}

// calmLocked is Calm. The caller holds mu.
func (t *topology) calmLocked() bool {
	for _, h := range t.hosts {
		used := func(d *wire.Device) bool { return d.State != DeviceOut && d.State != DeviceRetired }
		if slices.ContainsFunc(h.record.Devices, used) && (!h.alive || h.record.MaintenanceUntil > t.clusterTime) {
			return false
		}
	}
	return true
}

// Answers reports whether a device works. Its host must have reported to this leader, must not be
// silent, and must not be announced to be away.
func (t *topology) Answers(device uint32, now time.Time) bool {
	d := t.View().Devices[device]
	if d == nil || !d.Alive {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[d.Host]
	if h == nil {
		return false
	}
	u, reported := h.usage[device]
	return reported && !u.failed && h.alive && now.Sub(h.lastSeen) <= t.suspect && h.record.MaintenanceUntil <= t.clusterTime
}

// boots forgets reports from an earlier boot of a host. Its failed devices must
// not go out again before the first heartbeat of this boot. Reports on devices
// that it no longer registers must not bring those in again.
func (t *topology) boots(id string, with []*wire.Device) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[id]
	t.came = true
	if h == nil {
		return
	}
	for d, u := range h.usage {
		if !slices.ContainsFunc(with, func(w *wire.Device) bool { return w.Id == d }) {
			delete(h.usage, d)
			delete(h.freed, d)
			t.stale = true
			continue
		}
		u.failed = false
		h.usage[d] = u
	}
}

// Judge finds the hosts that became silent or returned, updates the view, and returns the devices
// whose state must change. Devices of hosts silent for longer than grace, and those that their
// server took out, go out. Devices that went out only for silence return with their host; those
// that were draining continue to drain.
func (t *topology) Judge(now time.Time, grace time.Duration, clusterTime uint64) []*wire.SetDeviceState {
	t.mu.Lock()
	defer t.mu.Unlock()
	var sets []*wire.SetDeviceState
	changed := t.awayEnded(clusterTime)
	t.clusterTime = clusterTime
	if t.came {
		t.back, t.came = clusterTime, false
	}
	for _, h := range t.hosts {
		silent := now.Sub(h.lastSeen)
		if h.alive && silent > t.suspect {
			h.alive, changed = false, true
		}
		away := h.record.MaintenanceUntil > clusterTime
		for _, d := range h.record.Devices {
			set := h.judge(d, silent > grace && !away)
			if set != nil {
				set.Device = d.Id
				sets = append(sets, set)
			}
		}
	}
	switch {
	case changed:
		t.changed()
	case t.stale:
		t.publish()
	}
	slices.SortFunc(sets, func(a, b *wire.SetDeviceState) int { return cmp.Compare(a.Device, b.Device) })
	return sets
}

// awayEnded reports whether a host's maintenance ended between the last judgement and now.
func (t *topology) awayEnded(now uint64) bool {
	for _, h := range t.hosts {
		if u := h.record.MaintenanceUntil; t.clusterTime < u && u <= now {
			return true
		}
	}
	return false
}

// Reasons for states that a leader sets. It also unsets the first one.
const (
	reasonSilent = record.ReasonSilent
	reasonFailed = "its server took it out of service"
	reasonBack   = "its host is back"
)

// judge returns the state change that a device needs, or nil.
func (h *host) judge(d *wire.Device, gone bool) *wire.SetDeviceState {
	u, reported := h.usage[d.Id]
	switch {
	case gone && holds(d):
		return &wire.SetDeviceState{State: DeviceOut, Reason: reasonSilent}
	case reported && u.failed && holds(d):
		set := &wire.SetDeviceState{State: DeviceOut, Reason: reasonFailed, Keep: u.distrusted}
		if u.why != "" {
			set.Reason = (reasonFailed + ": " + u.why)[:min(len(reasonFailed)+2+len(u.why), moraine.MaxNameLen)]
		}
		return set
	case reported && h.alive && !u.failed && d.State == DeviceOut && d.Reason == reasonSilent:
		return &wire.SetDeviceState{State: DeviceIn, Reason: reasonBack}
	}
	return nil
}

const (
	DeviceIn       = wire.DeviceState_DEVICE_STATE_IN
	DeviceOut      = wire.DeviceState_DEVICE_STATE_OUT
	deviceDraining = wire.DeviceState_DEVICE_STATE_DRAINING
	DeviceRetired  = wire.DeviceState_DEVICE_STATE_RETIRED
)

// RenewAll gives every host a full new term. Hosts known to be silent stay silent.
func (t *topology) RenewAll(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.hosts {
		h.lastSeen, h.spoke, h.booted = now, false, false
		if !h.alive {
			h.lastSeen = now.Add(-t.suspect)
		}
	}
}

// avoid sets the hosts that peers cannot reach.
func (t *topology) avoid(hosts map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !maps.Equal(t.avoided, hosts) {
		t.avoided = hosts
		t.changed()
	}
}

// changed publishes a view with a new version. The caller holds mu.
func (t *topology) changed() {
	t.version++
	t.publish()
}

// publish makes a view of the present knowledge. The caller holds mu, or has exclusive use of the
// topology.
func (t *topology) publish() {
	t.stale, t.first = false, false
	v := &View{
		Wire:  &wire.Topology{Version: t.version},
		Hosts: make(map[string]*wire.Host, len(t.hosts)), Devices: make(map[uint32]*wire.Device),
		mean: t.meanFill(), guessed: make(map[uint32]bool),
	}
	for _, h := range t.hosts {
		v.add(h, t.clusterTime)
	}
	v.avoided = t.avoided
	slices.SortFunc(v.Wire.Hosts, func(a, b *wire.Host) int { return strings.Compare(a.Id, b.Id) })
	v.Place = place.NewTopology(v.placeHosts(t.clusterTime))
	t.current.Store(v)
}

// add adds a host to the view, unless it is silent and all its devices are retired.
func (v *View) add(h *host, clusterTime uint64) {
	if !h.alive && retired(h.record) {
		return
	}
	w := proto.CloneOf(h.record)
	w.Alive, w.Seen = h.alive, h.spoke && h.booted
	if w.MaintenanceUntil <= clusterTime {
		w.MaintenanceUntil, w.MaintenanceReason = 0, ""
	}
	counts := 0
	for _, d := range w.Devices {
		if u, ok := h.usage[d.Id]; ok {
			u.describe(d)
			d.Measured = true
		} else if holds(d) {
			v.guess(d)
		}
		d.Alive = h.alive && d.State != DeviceOut
		v.Devices[d.Id] = d
		if d.State != DeviceRetired {
			counts++
		}
	}
	v.Hosts[w.Id] = w
	v.Wire.Hosts = append(v.Wire.Hosts, w)
	if h.alive {
		v.Live++
		if w.Seen {
			v.reporting++
		}
	}
	if counts > 0 {
		v.Counted++
		v.disks += counts
	}
}

// placeHosts converts hosts to placement candidates. A host announced to be away takes nothing new.
func (v *View) placeHosts(clusterTime uint64) []place.Host {
	out := make([]place.Host, 0, len(v.Wire.Hosts))
	for _, h := range v.Wire.Hosts {
		p := place.Host{ID: h.Id, Rack: h.Rack, Alive: h.Alive}
		for _, d := range h.Devices {
			if d.State == DeviceRetired {
				continue
			}
			p.Devices = append(p.Devices, place.Device{
				ID: moraine.DeviceID(d.Id), Capacity: d.Capacity, Free: v.free(d),
				Takes: d.State == DeviceIn && h.MaintenanceUntil <= clusterTime && !v.avoided[h.Id],
			})
		}
		out = append(out, p)
	}
	return out
}

// DefaultScheme returns the scheme of new stripes without a policy.
func (v *View) DefaultScheme() moraine.Scheme {
	return moraine.DefaultScheme(v.Counted, v.disks)
}

// onHost reports whether device belongs to host.
func (v *View) onHost(device uint32, host string) bool {
	d := v.Devices[device]
	return d != nil && d.Host == host
}
