// Package place chooses the devices of stripes. It is a pure function of (topology, request): no
// clock, no I/O, and no randomness except from the stripe's number. It records nothing, and does
// not check whether a choice is still valid when it is used: the state machine does that at commit.
//
// The metadata leader makes a Topology of the hosts and devices that it knows (NewTopology). When a
// client requests stripes, Place spreads each stripe's chunks over hosts and racks, weighted by
// free space and scattered by the stripe's number. A lost host is therefore rebuilt from, and onto,
// all the others. If too few domains are up, chunks share them as evenly as possible, down to the
// least protection allowed.
package place

import (
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
)

// reserveDivisor sets the part of a device, 1/reserveDivisor of its capacity, that only repair may
// fill.
const reserveDivisor = 50

// Request is a request for the devices of one stripe.
type Request struct {
	Stripe moraine.StripeID
	Scheme moraine.Scheme
	// ChunkLength is the free space, in bytes, that each device must have.
	ChunkLength uint64
	// Avoid lists devices that must not be chosen.
	Avoid []moraine.DeviceID
	// Keep, if not nil, has one element for each chunk of the scheme: the device that keeps its
	// chunk, or 0 for one to choose.
	Keep []moraine.DeviceID
	// MinProtection is how many lost hosts (devices, if one host is registered) a
	// stripe with redundancy must survive. Its scheme may provide less. 0 means 1.
	MinProtection int
	// Repair accepts the best possible choice, however little it protects, and may fill a device's
	// reserve.
	Repair bool
}

// Placement is the answer to a Request.
type Placement struct {
	// Scheme is the request's, or copies if that one cannot protect enough now.
	Scheme moraine.Scheme
	// Devices has one element for each chunk of Scheme.
	Devices []moraine.DeviceID
	// Protects is the number of hosts (devices, if one host is registered) that may be lost without
	// losing a byte.
	Protects int
	// Degraded says that Protects is less than the request's scheme promises.
	Degraded bool
}

// Place chooses devices for one stripe. The same topology and request give the
// same answer. If two or more hosts are registered, a stripe must survive the
// loss of any MinProtection hosts. With a single host of several devices, it
// must survive the loss of as many devices. If the scheme cannot provide this
// now, Place answers MinProtection + 1 copies instead (not with Keep or
// Repair), for example x2. If that is impossible too it fails with Unavailable.
// A scheme without redundancy needs no protection. NoSpace means that devices
// accept chunks but none has room.
func Place(t *Topology, req Request) (Placement, error) {
	if err := check(req); err != nil {
		return Placement{}, err
	}
	p, err := place(t, req)
	if err != nil {
		return Placement{}, err
	}
	need := t.required(req)
	if p.Protects >= need {
		return p, nil
	}
	if copies := moraine.Copies(need + 1); req.Keep == nil && req.Scheme != copies {
		again := req
		again.Scheme = copies
		if q, err := place(t, again); err == nil && q.Protects >= need {
			q.Degraded = q.Protects < int(req.Scheme.M)
			return q, nil
		}
	}
	return Placement{}, t.tooFew(req)
}

func check(req Request) error {
	if !req.Scheme.Valid() {
		return invalid(req, "scheme %v", req.Scheme)
	}
	if req.Keep != nil && len(req.Keep) != req.Scheme.Chunks() {
		return invalid(req, "%d devices to keep for %d chunks", len(req.Keep), req.Scheme.Chunks())
	}
	return nil
}

func invalid(req Request, format string, args ...any) error {
	return &moraine.Error{Op: "place", Ref: req.Stripe.String(), Kind: moraine.InvalidArgument, Err: fmt.Errorf(format, args...)}
}

// required returns how many domains a stripe must be able to lose.
func (t *Topology) required(req Request) int {
	if req.Repair || req.Scheme.M == 0 || t.registeredDevices < 2 {
		return 0
	}
	return min(max(req.MinProtection, 1), int(req.Scheme.M))
}

// tooFew says why a stripe cannot be protected enough. The reason is space if enough hosts or
// devices accept chunks and too few of them have room.
func (t *Topology) tooFew(req Request) error {
	hosts, devices, taking := t.withRoom(req)
	need := t.required(req)
	e := &moraine.Error{Op: "place", Ref: req.Stripe.String(), Kind: moraine.Unavailable}
	if t.registeredHosts >= 2 {
		if len(t.hosts) > need && hosts <= need {
			e.Kind = moraine.NoSpace
		}
		e.Err = fmt.Errorf("a stripe must survive the loss of any %s. Of %d hosts %d take chunks and %d have room for %d bytes: start more chunkservers, or add space",
			count(need, "host"), t.registeredHosts, len(t.hosts), hosts, req.ChunkLength)
		return e
	}
	if taking > need && devices <= need {
		e.Kind = moraine.NoSpace
	}
	e.Err = fmt.Errorf("a stripe must survive the loss of any %s. Of this host's %d devices %d take chunks and %d have room for %d bytes: bring devices back, or add some",
		count(need, "device"), t.registeredDevices, taking, devices, req.ChunkLength)
	return e
}

// count is "1 host", "2 hosts".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// withRoom counts the hosts and devices that may take a chunk of the request, and the devices that
// accept chunks at all.
func (t *Topology) withRoom(req Request) (hosts, devices, taking int) {
	s := newSearch(t, req)
	for i := range t.hosts {
		before := devices
		for j := range t.hosts[i].devices {
			taking++
			if s.room(&t.hosts[i].devices[j]) {
				devices++
			}
		}
		if devices > before {
			hosts++
		}
	}
	return hosts, devices, taking
}

// place chooses without checking the least protection.
func place(t *Topology, req Request) (Placement, error) {
	s := newSearch(t, req)
	devices := make([]moraine.DeviceID, req.Scheme.Chunks())
	copy(devices, req.Keep)
	for _, d := range devices {
		if d != 0 {
			s.occupy(d)
		}
	}
	for i, d := range devices {
		if d != 0 {
			continue
		}
		chosen, ok := s.next()
		if !ok {
			return Placement{}, t.noDevice(req)
		}
		devices[i] = chosen
		s.occupy(chosen)
	}
	protects := t.protects(int(req.Scheme.M), devices)
	return Placement{
		Scheme: req.Scheme, Devices: devices,
		Protects: protects, Degraded: protects < int(req.Scheme.M),
	}, nil
}

func (t *Topology) noDevice(req Request) error {
	if len(t.hosts) == 0 {
		e := &moraine.Error{Op: "place", Ref: req.Stripe.String(), Kind: moraine.Unavailable,
			Err: fmt.Errorf("none of %d hosts takes chunks now: start chunkservers", t.registeredHosts)}
		if t.refusing > 0 {
			e.Err = fmt.Errorf("none of %d hosts takes chunks now, although %d answer: they are draining, out of service or in maintenance (`moraine host ls`). Take one in again, or start other chunkservers",
				t.registeredHosts, t.refusing)
		}
		return e
	}
	return &moraine.Error{Op: "place", Ref: req.Stripe.String(), Kind: moraine.NoSpace,
		Err: fmt.Errorf("no device, except those to avoid, has room for %d bytes: remove data, or add devices", req.ChunkLength)}
}

// protects counts domains by host, or by device on a single host. More chunks than spare always
// exist, so that the answer is at most m. A chunk on an unregistered device counts as lost.
func (t *Topology) protects(spare int, devices []moraine.DeviceID) int {
	domains := make([]string, 0, len(devices))
	for _, d := range devices {
		l, ok := t.at[d]
		switch {
		case !ok:
			spare--
		case t.registeredHosts >= 2:
			domains = append(domains, l.name)
		default:
			domains = append(domains, fmt.Sprint(d))
		}
	}
	if spare < 0 {
		return 0
	}
	return Protects(spare, domains)
}

// search is the choice of one stripe's devices in progress.
type search struct {
	t       *Topology
	req     Request
	random  uint64 // state of the generator
	rackCap int    // chunks that one rack may take

	// taken has the places of the stripe's chunks so far. They are so few that scanning them is
	// faster than making maps.
	taken []taken
}

// taken is the place of one chunk; host and rack are -1 if unknown.
type taken struct {
	device     moraine.DeviceID
	host, rack int
}

func newSearch(t *Topology, req Request) *search {
	return &search{
		t: t, req: req, random: uint64(req.Stripe), rackCap: t.rackCap(req.Scheme),
		taken: make([]taken, 0, req.Scheme.Chunks()),
	}
}

// occupy counts a chunk on device.
func (s *search) occupy(device moraine.DeviceID) {
	at := taken{device: device, host: -1, rack: -1}
	if l, ok := s.t.at[device]; ok {
		at.host, at.rack = l.host, l.rack
	}
	s.taken = append(s.taken, at)
}

// onHost returns the number of the stripe's chunks on host h, onRack on a rack, and onDevice on a
// device.
func (s *search) onHost(h int) (n int) {
	for i := range s.taken {
		if s.taken[i].host == h {
			n++
		}
	}
	return n
}

func (s *search) onRack(rack int) (n int) {
	for i := range s.taken {
		if s.taken[i].rack == rack {
			n++
		}
	}
	return n
}

func (s *search) onDevice(device moraine.DeviceID) (n int) {
	for i := range s.taken {
		if s.taken[i].device == device {
			n++
		}
	}
	return n
}

// rackCap returns how many chunks of a stripe one rack may take. Racks matter only if a stripe can
// survive the loss of one. A rack then takes its share by weight, and never more than the stripe
// can lose.
func (t *Topology) rackCap(scheme moraine.Scheme) int {
	n, m := scheme.Chunks(), int(scheme.M)
	if t.racks < 2 || m == 0 {
		return n
	}
	least := 1
	for ; least <= m; least++ {
		room := 0
		for _, h := range t.rackHosts {
			if room += min(least, h); room >= n {
				break
			}
		}
		if room >= n {
			break
		}
	}
	if least > m {
		return n
	}
	share := n
	if total := t.total(); total > 0 {
		share = int((uint64(n)*t.heaviestRack + total - 1) / total)
	}
	return min(max(share, least), m)
}

// room reports whether device may take a chunk of the request.
func (s *search) room(d *Device) bool {
	need := s.req.ChunkLength
	if !s.req.Repair {
		need += d.Capacity / reserveDivisor
	}
	return d.Free >= need && !slices.Contains(s.req.Avoid, d.ID)
}
