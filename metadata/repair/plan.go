package repair

import (
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/metadata/place"
	"github.com/morainefs/moraine/transport/wire"
)

// planner judges and plans the places of chunks by what is known of the devices.
type planner struct{ *fleet.View }

// safety is how well a stripe's chunks are spread, best first: what it certainly survives, then
// what it survives with luck.
type safety struct {
	hosts, devices           int // any of these may be lost
	luckyHosts, luckyDevices int // these may be lost if they are the right ones
}

func (s safety) better(than safety) bool {
	a := [...]int{s.hosts, s.devices, s.luckyHosts, s.luckyDevices}
	b := [...]int{than.hosts, than.devices, than.luckyHosts, than.luckyDevices}
	return slices.Compare(a[:], b[:]) > 0
}

// planRepair returns the chunks of a stripe to write now and their targets, by index. It returns
// none if nothing would improve the stripe, or if too few chunks can be read to rebuild from. bad
// is the bit mask of chunks reported as bad; the plan uses no device in avoid.
//
// For a stripe with too few chunks left it also counts chunks that may be readable: see perhaps.
// Trying them is cheap, and the mover verifies each against the stripe record.
//
// A chunk on a device that is out, retired, unknown or draining is replaced. One on a host that is
// merely silent is waited for: it is neither replaced nor moved. Chunks that share a host are
// spread as soon as there are hosts for them.
func planRepair(view *fleet.View, s *moraine.Stripe, bad uint32, avoid ...moraine.DeviceID) []*wire.Intent {
	v := planner{view}
	now := make([]moraine.DeviceID, len(s.Chunks)) // present places of the chunks; 0 if a chunk is gone
	keep := make([]moraine.DeviceID, len(s.Chunks))
	left, readable, maybe := 0, 0, 0
	for i, c := range s.Chunks {
		d := v.Devices[uint32(c.Device)]
		if bad&(1<<i) != 0 || d == nil || d.State == fleet.DeviceOut || d.State == fleet.DeviceRetired {
			if v.perhaps(c) {
				maybe++
			}
			continue
		}
		left++
		now[i] = c.Device
		if d.State == fleet.DeviceIn {
			keep[i] = c.Device
		}
		if d.Alive {
			readable++
		}
	}
	k := int(s.Scheme.K)
	lost := left < k
	if readable < k && (!lost || readable+maybe < k) {
		return nil // wait for chunks on silent hosts
	}
	before := v.safety(s.Scheme, now)
	draining := !slices.Equal(now, keep)
	best := v.replace(s, keep, avoid)
	if best == nil || v.safety(s.Scheme, best).worse(before, draining) {
		best = nil
	}
	if spread := v.replace(s, v.unshare(keep), avoid); spread != nil {
		after := v.safety(s.Scheme, spread)
		if after.better(before) && (best == nil || after.better(v.safety(s.Scheme, best))) {
			best = spread
		}
	}
	if !lost {
		return intents(s, now, best)
	}
	v.leaveOut(s, best)
	// Chunks written in place of others cannot be read until the commit, so never write so many
	// that too few others are left.
	in := intents(s, now, best)
	return in[:min(len(in), max(int(s.Scheme.M), 1))]
}

// perhaps reports whether a chunk that the plan counts as missing may be readable
// after all. The host of its device is up, and has not restarted if the chunk was
// only in its memory. A device may be out because it disturbed others, or by an
// administrator's request, and still serves its chunks. A report of a bad chunk
// may be wrong, or may have been right only for a moment.
func (v planner) perhaps(c moraine.ChunkState) bool {
	d := v.Devices[uint32(c.Device)]
	if d == nil || d.State == fleet.DeviceRetired || (c.Level == moraine.Memory && uint64(c.Epoch) != d.Epoch) {
		return false
	}
	h := v.Hosts[d.Host]
	return h != nil && h.Alive
}

// tooFew reports whether fewer than K chunks of a stripe are left; bad is as for planRepair.
func (v planner) tooFew(s *moraine.Stripe, bad uint32) bool {
	left := 0
	for i, c := range s.Chunks {
		if d := v.Devices[uint32(c.Device)]; bad&(1<<i) == 0 && d != nil && d.State != fleet.DeviceOut && d.State != fleet.DeviceRetired {
			left++
		}
	}
	return left < int(s.Scheme.K)
}

// leaveOut removes chunks on out devices from a plan if moving them makes the stripe no safer.
// Their old copies die with the move, and may be the only copy on a separate disk.
func (v planner) leaveOut(s *moraine.Stripe, plan []moraine.DeviceID) {
	for i := range plan {
		d := v.Devices[uint32(s.Chunks[i].Device)]
		if d == nil || d.State != fleet.DeviceOut || !v.perhaps(s.Chunks[i]) {
			continue
		}
		without := slices.Clone(plan)
		without[i] = 0
		if !v.safety(s.Scheme, plan).better(v.safety(s.Scheme, without)) {
			plan[i] = 0
		}
	}
}

// worse reports whether s is no reason to move: it is less safe than before, or as safe and no
// device is draining.
func (s safety) worse(before safety, draining bool) bool {
	return before.better(s) || (!draining && !s.better(before))
}

// replace chooses devices for the chunks that keep leaves open; nil if there are no candidates.
func (v planner) replace(s *moraine.Stripe, keep, avoid []moraine.DeviceID) []moraine.DeviceID {
	p, err := place.Place(v.Place, place.Request{
		Stripe: s.ID, Scheme: s.Scheme, ChunkLength: uint64(s.Scheme.ChunkLen(s.Length)), Keep: keep, Avoid: avoid, Repair: true,
	})
	if err != nil {
		return nil
	}
	return p.Devices
}

// unshare returns keep with one chunk left on each host that is up.
func (v planner) unshare(keep []moraine.DeviceID) []moraine.DeviceID {
	out := slices.Clone(keep)
	seen := make(map[string]bool, len(keep))
	for i, id := range out {
		d := v.Devices[uint32(id)]
		if d == nil || !d.Alive {
			continue
		}
		if seen[d.Host] {
			out[i] = 0
		}
		seen[d.Host] = true
	}
	return out
}

// safety judges a set of places; 0 means that a chunk is gone.
func (v planner) safety(scheme moraine.Scheme, devices []moraine.DeviceID) safety {
	hosts := make([]string, 0, len(devices))
	there := make([]moraine.DeviceID, 0, len(devices))
	for _, id := range devices {
		if d := v.Devices[uint32(id)]; d != nil {
			hosts, there = append(hosts, d.Host), append(there, id)
		}
	}
	spare := len(there) - int(scheme.K)
	if spare < 0 {
		return safety{hosts: -1}
	}
	s := safety{
		hosts: place.Protects(spare, hosts), devices: place.Protects(spare, there),
		luckyHosts: place.ProtectsAtBest(spare, hosts), luckyDevices: place.ProtectsAtBest(spare, there),
	}
	if v.Counted < 2 { // with a single host, the host is no failure domain
		s.hosts, s.luckyHosts = 0, 0
	}
	return s
}

// intents returns the chunks of s to write so that its chunks are on devices. A missing chunk may
// be written to its old place.
func intents(s *moraine.Stripe, now, devices []moraine.DeviceID) []*wire.Intent {
	var out []*wire.Intent
	for i, d := range devices {
		if d != now[i] {
			out = append(out, &wire.Intent{Stripe: uint64(s.ID), Index: uint32(i), Device: uint32(d), Version: uint32(s.Version) + 1})
		}
	}
	return out
}
