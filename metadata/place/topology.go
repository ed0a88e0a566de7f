package place

import (
	"cmp"
	"maps"
	"slices"

	"github.com/morainefs/moraine"
)

// Device is a target for chunks. Retired devices are not listed.
type Device struct {
	ID moraine.DeviceID
	// Capacity and Free are in bytes.
	Capacity, Free uint64
	// Takes reports whether the device takes new chunks: it is neither out nor draining.
	Takes bool
}

// Host is one failure domain above devices.
type Host struct {
	ID string
	// Rack is the failure domain above hosts; hosts with an empty rack share one.
	Rack string
	// Alive reports whether the host's heartbeats arrive.
	Alive   bool
	Devices []Device
}

// Topology is the input of placement. It never changes, and any number of goroutines may use it.
type Topology struct {
	hosts []host   // those that may take chunks, by ID
	sums  []uint64 // sums[i] is the weight of hosts[:i+1]
	at    map[moraine.DeviceID]location
	racks int // number of rack indexes in use
	// rackHosts has the number of hosts that may take chunks by rack, heaviestRack the weight of
	// the heaviest rack.
	rackHosts    []int
	heaviestRack uint64

	registeredHosts, registeredDevices int
	// refusing is the number of hosts that are up and have no device that takes chunks.
	refusing int
}

type host struct {
	rack    int
	weight  uint64
	devices []Device // those that take chunks, by ID
}

// location is a device's place; host is -1 if its host takes nothing.
type location struct {
	host, rack int
	name       string
}

// NewTopology prepares hosts for placement. The order of hosts and devices does not matter. A host
// without devices is ignored. It takes ownership of hosts.
func NewTopology(hosts []Host) *Topology {
	slices.SortFunc(hosts, func(a, b Host) int { return cmp.Compare(a.ID, b.ID) })
	t := &Topology{at: make(map[moraine.DeviceID]location)}
	racks := make(map[string]int)
	for i := range hosts {
		h := &hosts[i]
		if len(h.Devices) == 0 {
			continue
		}
		rack, ok := racks[h.Rack]
		if !ok {
			rack = len(racks)
			racks[h.Rack] = rack
		}
		t.registeredHosts++
		t.registeredDevices += len(h.Devices)
		t.add(h, rack)
	}
	t.racks = len(racks)
	t.rackHosts = make([]int, t.racks)
	weights := make([]uint64, t.racks)
	for i := range t.hosts {
		t.rackHosts[t.hosts[i].rack]++
		weights[t.hosts[i].rack] += t.hosts[i].weight
	}
	if len(weights) > 0 {
		t.heaviestRack = slices.Max(weights)
	}
	return t
}

func (t *Topology) add(h *Host, rack int) {
	slices.SortFunc(h.Devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	taking := host{rack: rack}
	for _, d := range h.Devices {
		if h.Alive && d.Takes {
			taking.devices = append(taking.devices, d)
			taking.weight += weight(d)
		}
	}
	at := location{host: -1, rack: rack, name: h.ID}
	if len(taking.devices) > 0 {
		at.host = len(t.hosts)
		t.hosts = append(t.hosts, taking)
		t.sums = append(t.sums, t.total()+taking.weight)
	} else if h.Alive {
		t.refusing++
	}
	for _, d := range h.Devices {
		t.at[d.ID] = at
	}
}

// weightUnit is the unit of weights in bytes. It keeps the sum of an exabyte of devices far from
// overflow.
const weightUnit = 1 << 20

// weight grows with a device's free space. A full device still has a weight, so that sums strictly
// increase and repair can use it.
func weight(d Device) uint64 { return d.Free/weightUnit + 1 }

func (t *Topology) total() uint64 {
	if len(t.sums) == 0 {
		return 0
	}
	return t.sums[len(t.sums)-1]
}

// Room returns how many bytes of chunks the devices that take new ones have room for, without the
// reserve that only repair may fill.
func (t *Topology) Room() (bytes uint64) {
	for _, h := range t.hosts {
		for _, d := range h.devices {
			if reserve := d.Capacity / reserveDivisor; d.Free > reserve {
				bytes += d.Free - reserve
			}
		}
	}
	return bytes
}

// Hosts returns the number of registered hosts, and of those that may take chunks now.
func (t *Topology) Hosts() (registered, taking int) { return t.registeredHosts, len(t.hosts) }

// Devices returns the number of registered devices.
func (t *Topology) Devices() int { return t.registeredDevices }

// Protects returns how many failure domains, whichever they are, may be lost with at most spare of
// the chunks in them. domains names the domain of each chunk. If there are no more chunks than
// spare it returns the number of domains.
func Protects[D comparable](spare int, domains []D) int {
	sizes := perDomain(domains)
	slices.Reverse(sizes)
	return lostWithin(spare, sizes)
}

// ProtectsAtBest is Protects if the domains with the fewest chunks fail first.
func ProtectsAtBest[D comparable](spare int, domains []D) int {
	return lostWithin(spare, perDomain(domains))
}

// perDomain returns how many chunks each domain has, the fewest first.
func perDomain[D comparable](domains []D) []int {
	counts := make(map[D]int, len(domains))
	for _, d := range domains {
		counts[d]++
	}
	return slices.Sorted(maps.Values(counts))
}

// lostWithin returns how many domains, in order, may be lost with at most spare chunks.
func lostWithin(spare int, sizes []int) int {
	for i, n := range sizes {
		if spare -= n; spare < 0 {
			return i
		}
	}
	return len(sizes)
}
