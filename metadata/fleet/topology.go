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

// topology is the leader's view of hosts and devices: what is registered, which
// is in the state, and what the heartbeats say, which is only here.
type topology struct {
	suspect time.Duration

	mu      sync.Mutex
	version uint64 // the term in the upper half: it rises across leaders
	hosts   map[string]*host
	stale   bool // usage has changed since the view was made
	first   bool // some of it is the first that its device's host said
	slow    slowness
	// clusterTime is that of the last judgement, back that of the first one after a host
	// came back, or this leader began; came is whether one did since the last.
	clusterTime, back uint64
	came              bool
	requests          atomic.Uint64   // marks given out: see mark
	avoided           map[string]bool // Hosts that peers cannot reach: nothing new is placed on them

	current atomic.Pointer[View]
}

// View is a topology at one moment. It never changes.
type View struct {
	Wire      *wire.Topology
	Place     *place.Topology
	Hosts     map[string]*wire.Host
	Devices   map[uint32]*wire.Device
	Live      int // Hosts alive, or taken for it
	reporting int // Hosts alive that this leader has heard of
	Counted   int // Hosts and devices that count for the default scheme
	disks     int
	mean      float64         // how full devices are
	guessed   map[uint32]bool // Devices that are taken to be as full
	avoided   map[string]bool // as of topology
}

// host is what the leader knows of one registered host.
type host struct {
	record   *wire.Host // as registered; never changed in place
	lastSeen time.Time  // of its last heartbeat, or when this leader began
	spoke    bool       // Note is of a heartbeat or a registration, not given to it
	seq      uint64     // of the request that it was last heard by: see topology.mark
	booted   bool       // its last heartbeat was of the boot that is registered
	alive    bool
	usage    map[uint32]usage
	freed    map[uint32][]freed
}

// freed is what was deleted on a device and may still be counted in what its host said
// last of how full it is.
type freed struct {
	at    time.Time // of the acknowledgement
	bytes uint64
}

// maxFreed bounds those of a device; more are taken for one, at the time of the last.
const maxFreed = 16

// usage is what a heartbeat says of a device.
type usage struct {
	capacity, used, chunks uint64
	failed                 bool // its server took it out of service itself
	distrusted             bool // for good
	why                    string
	putMicros, corrupt     uint64
	readMicros             [wire.ReadClasses]uint64
	scrub                  scrubbed
	health                 string // encoded
}

// scrubbed is a wire.Scrub that can be compared.
type scrubbed struct {
	lastDone, started                  int64
	lastBytes, lastBad                 uint64
	chunks, bytes, bad, bytesPerSecond uint64
	running                            bool
}

func NewTopology(term uint64, suspect time.Duration) *topology {
	t := &topology{suspect: suspect, version: term << 32, hosts: make(map[string]*host), came: true}
	t.publish()
	return t
}

// View returns the topology of now.
func (t *topology) View() *View { return t.current.Load() }

// Load takes over the hosts and devices of the state. A host that is new to
// this leader is taken for alive for a term.
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

// Mark orders requests: one that came after another has a greater mark. A request takes
// its mark when it comes, before it waits for anything.
func (t *topology) Mark() uint64 { return t.requests.Add(1) }

// NoteHeartbeat notes a heartbeat, or a registration, that came at a mark. It returns false for a
// host that is not registered.
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
			h.booted = false // it is asked to register
		}
	}
	if h.booted != known {
		t.stale, t.first = true, true
	}
	for _, d := range devices {
		if !slices.ContainsFunc(h.record.Devices, func(r *wire.Device) bool { return r.Id == d.Id }) {
			continue // it is none of this host's
		}
		u := usageOf(d)
		if _, before := h.usage[d.Id]; !before || h.usage[d.Id] != u {
			h.usage[d.Id], t.stale, t.first = u, true, t.first || !before
		}
		// A heartbeat describes its devices before it is sent, and is on its way for no
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

// CameBack is when, in cluster time, a host came back last: what was read of its chunks
// before says nothing.
func (t *topology) CameBack() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.back
}

// deleted notes how many bytes of chunks on devices of a host were deleted: what it says of
// how full they are counts them, and for a while may still do so in what is on its way.
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

// Fillings is how full each device is that is in service and answers, as its host said
// last, without what was deleted since, and which of them may give and take chunks to be
// filled evenly, the fullest first. What is drained, out, on a silent host or on one that is
// announced to be away is left alone. unsure is whether there are devices that will be
// known better soon.
func (t *topology) Fillings() (v *View, out []Filling, unsure bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, h := range t.hosts {
		if !h.alive || h.record.MaintenanceUntil > t.clusterTime {
			continue
		}
		for _, d := range h.record.Devices {
			u, told := h.usage[d.Id]
			if d.State != DeviceIn || u.failed {
				continue
			}
			if !told || u.capacity == 0 {
				unsure = unsure || !told
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

// Calm reports whether every host with devices that are to be used is alive, and none is
// announced to be away.
func (t *topology) Calm() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calmLocked()
}

// calmLocked is calm. The caller holds mu.
func (t *topology) calmLocked() bool {
	for _, h := range t.hosts {
		used := func(d *wire.Device) bool { return d.State != DeviceOut && d.State != DeviceRetired }
		if slices.ContainsFunc(h.record.Devices, used) && (!h.alive || h.record.MaintenanceUntil > t.clusterTime) {
			return false
		}
	}
	return true
}

// Answers reports whether a device works, on a host that this leader has heard of, that is
// not silent now and is not announced to be away.
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
	u, told := h.usage[device]
	return told && !u.failed && h.alive && now.Sub(h.lastSeen) <= t.suspect && h.record.MaintenanceUntil <= t.clusterTime
}

// boots forgets what an earlier boot of a host said of its devices: that some had failed,
// which must not take them out again before the first heartbeat of this one, and all of
// those that it registers without, which must not take these in again.
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

// Judge finds the hosts that fell silent or came back, brings the view up to
// date, and returns the devices whose state must change: those of hosts that
// have been silent for longer than grace, and those that their server took out,
// go out of service; those that went out for silence alone come back with their
// host, and those of them that were draining as such.
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

// awayEnded reports whether the maintenance of a host ended between the last
// judgement and now.
func (t *topology) awayEnded(now uint64) bool {
	for _, h := range t.hosts {
		if u := h.record.MaintenanceUntil; t.clusterTime < u && u <= now {
			return true
		}
	}
	return false
}

// The reasons of states that a leader sets, and, of the first, unsets.
const (
	reasonSilent = record.ReasonSilent
	reasonFailed = "its server took it out of service"
	reasonBack   = "its host is back"
)

// judge returns the change of state that a device should have, nil for none.
func (h *host) judge(d *wire.Device, gone bool) *wire.SetDeviceState {
	u, heard := h.usage[d.Id]
	switch {
	case gone && holds(d):
		return &wire.SetDeviceState{State: DeviceOut, Reason: reasonSilent}
	case heard && u.failed && holds(d):
		set := &wire.SetDeviceState{State: DeviceOut, Reason: reasonFailed, Keep: u.distrusted}
		if u.why != "" {
			set.Reason = (reasonFailed + ": " + u.why)[:min(len(reasonFailed)+2+len(u.why), moraine.MaxNameLen)]
		}
		return set
	case heard && h.alive && !u.failed && d.State == DeviceOut && d.Reason == reasonSilent:
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

// RenewAll gives every host a full term anew. Hosts that were known to be
// silent stay so.
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

// changed publishes a view under a new version. The caller holds mu.
func (t *topology) changed() {
	t.version++
	t.publish()
}

// publish makes a view of the present knowledge. The caller holds mu, or has
// the topology for itself.
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

// add puts a host into the view, unless nothing of it is left: it is silent, and
// all its devices are retired.
func (v *View) add(h *host, clusterTime uint64) {
	if !h.alive && retired(h.record) {
		return
	}
	w := proto.CloneOf(h.record)
	w.Alive, w.Heard = h.alive, h.spoke && h.booted
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
		if w.Heard {
			v.reporting++
		}
	}
	if counts > 0 {
		v.Counted++
		v.disks += counts
	}
}

// placeHosts turns hosts into what placement chooses from.
// A host that is announced to be away takes nothing new.
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

// DefaultScheme is the scheme of new stripes where nothing names one.
func (v *View) DefaultScheme() moraine.Scheme {
	return moraine.DefaultScheme(v.Counted, v.disks)
}

// onHost is whether device is one of host's.
func (v *View) onHost(device uint32, host string) bool {
	d := v.Devices[device]
	return d != nil && d.Host == host
}
