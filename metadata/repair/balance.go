package repair

import (
	"cmp"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/fleet"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// balanceTargets is the number of the emptiest devices that a plan considers for each chunk.
	balanceTargets = 1024
	// balanceReserve is the part of a device, 1 in so many, that moves leave free: 2% for repair
	// and as much for writes in progress.
	balanceReserve = 25
)

// balancer plans moves of chunks that bring the fill of devices closer together. It is a pure
// function of its inputs: each move builds on the earlier ones. A move goes from a device above the
// mean to one below it. At least one of the two is outside the band, and the move never makes them
// change places. The sum of squared deviations therefore decreases with each move, and no chunk
// moves back.
//
// No such move may be possible, because each stripe has a chunk on every host
// that could take one. Then it still balances the devices within each host
// (within).
type balancer struct {
	view   planner
	disks  map[uint32]*fleet.Filling
	sorted []*fleet.Filling // by ID, so that the same input gives the same plan
	low    []*fleet.Filling // devices that take chunks and were below the mean, emptiest first
	mean   float64
	band   float64
	within bool
	// in and out are the bytes of budget left to write to and read from each host.
	budget  int64
	in, out map[string]int64
}

// newBalancer starts a plan of moves with budget bytes to, and from, each host.
func newBalancer(v *fleet.View, disks []fleet.Filling, band float64, budget int64) *balancer {
	b := &balancer{view: planner{v}, disks: make(map[uint32]*fleet.Filling, len(disks)), band: band, budget: budget, in: make(map[string]int64), out: make(map[string]int64)}
	var used, capacity float64
	for i := range disks {
		d := &disks[i]
		b.disks[d.Id], b.sorted = d, append(b.sorted, d)
		b.in[d.Host], b.out[d.Host] = budget, budget
		used, capacity = used+float64(d.Used), capacity+float64(d.Capacity)
	}
	slices.SortFunc(b.sorted, func(x, y *fleet.Filling) int { return cmp.Compare(x.Id, y.Id) })
	if capacity > 0 {
		b.mean = used / capacity
	}
	for _, d := range b.sorted {
		if d.Takes && d.Fill() < b.mean {
			b.low = append(b.low, d)
		}
	}
	slices.SortStableFunc(b.low, fleet.ByFill)
	return b
}

// spread is how far devices are from the mean.
type spread struct {
	mean, most, least float64
	fullest, emptiest uint32
	outside           int    // devices outside the band
	left              uint64 // bytes to move until no device is outside
}

// spread measures the devices after the planned moves.
func (b *balancer) spread() spread {
	s := spread{mean: b.mean, least: 1}
	var over, under float64
	for _, d := range b.sorted {
		f := d.Fill()
		if f >= s.most {
			s.most, s.fullest = f, d.Id
		}
		if f <= s.least {
			s.least, s.emptiest = f, d.Id
		}
		if f > b.mean+b.band {
			s.outside++
			over += (f - b.mean - b.band) * float64(d.Capacity)
		}
		if f < b.mean-b.band {
			s.outside++
			under += (b.mean - b.band - f) * float64(d.Capacity)
		}
	}
	s.left = uint64(max(over, under))
	return s
}

// sources are the devices that may give chunks, fullest first.
func (b *balancer) sources() []*fleet.Filling {
	low := make(map[string]bool) // hosts with a device that needs chunks; "" means that some host has one
	for _, d := range b.low {
		if d.Fill() < b.mean-b.band {
			low[""], low[d.Host] = true, true
		}
	}
	var out []*fleet.Filling
	for _, d := range b.sorted {
		f := d.Fill()
		if d.Gives && b.out[d.Host] > 0 && (f > b.mean+b.band || low[""] && f > b.mean || b.within && low[d.Host]) {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(x, y *fleet.Filling) int { return fleet.ByFill(y, x) })
	return out
}

// move plans the move of one chunk of a stripe, from the fullest device possible, and returns its
// target. It returns nil if no move helps or no target is as safe. All chunks of the stripe must be
// present.
func (b *balancer) move(s *moraine.Stripe) *wire.Intent {
	if !b.whole(s) {
		return nil
	}
	size := s.Scheme.ChunkLen(s.Length)
	for _, index := range b.givers(s) {
		from := b.disks[uint32(s.Chunks[index].Device)]
		for _, to := range b.targets(from, size) {
			if !b.asSafe(s, index, to) {
				continue
			}
			from.Used -= min(from.Used, uint64(size))
			to.Used += uint64(size)
			b.out[from.Host] -= size
			b.in[to.Host] -= size
			return &wire.Intent{Stripe: uint64(s.ID), Index: uint32(index), Device: to.Id, Version: uint32(s.Version) + 1}
		}
	}
	return nil
}

// givers returns the chunks of a stripe on devices that may give: those above the mean, fullest
// first, or all when balancing within hosts.
func (b *balancer) givers(s *moraine.Stripe) []int {
	var out []int
	for i, c := range s.Chunks {
		d := b.disks[uint32(c.Device)]
		if d != nil && d.Gives && b.out[d.Host] > 0 && (b.within || d.Fill() > b.mean) {
			out = append(out, i)
		}
	}
	at := func(i int) *fleet.Filling { return b.disks[uint32(s.Chunks[i].Device)] }
	slices.SortStableFunc(out, func(i, j int) int { return fleet.ByFill(at(j), at(i)) })
	return out
}

// targets are the devices to which a chunk of a size may move, emptiest first. They always include
// those of the same host, where the chunk is as safe as before.
func (b *balancer) targets(from *fleet.Filling, size int64) []*fleet.Filling {
	over := !b.within && from.Fill() > b.mean+b.band
	var out []*fleet.Filling
	for i, d := range b.low {
		room := d.Capacity - min(d.Capacity, d.Used)
		if (i < balanceTargets && !b.within || d.Host == from.Host) && (over || d.Fill() < b.mean-b.band) && d.Fill() < b.mean &&
			d != from && b.in[d.Host] > 0 && room >= uint64(size)+d.Capacity/balanceReserve && from.After(-size) >= d.After(size) {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, fleet.ByFill)
	return out
}

// whole reports whether each chunk of a stripe is in place and durable. Its
// device must be in service, and the host up and not announced to be away.
// Otherwise CommitRepair would refuse the move.
func (b *balancer) whole(s *moraine.Stripe) bool {
	for _, c := range s.Chunks {
		if b.disks[uint32(c.Device)] == nil || c.Level == moraine.Memory {
			return false
		}
	}
	return true
}

// asSafe reports whether a stripe survives as much with a chunk on another
// device. It must have as many hosts and devices, and no more chunks in any
// rack.
func (b *balancer) asSafe(s *moraine.Stripe, index int, to *fleet.Filling) bool {
	now := s.Layout().Devices
	moved := slices.Clone(now)
	moved[index] = moraine.DeviceID(to.Id)
	if slices.Contains(now, moved[index]) || b.view.safety(s.Scheme, now).better(b.view.safety(s.Scheme, moved)) {
		return false
	}
	return b.inRack(moved, to.Rack) <= max(b.inRack(now, b.rack(now[index])), b.inRack(now, to.Rack))
}

// inRack counts the chunks in a rack.
func (b *balancer) inRack(devices []moraine.DeviceID, rack string) (n int) {
	for _, d := range devices {
		if b.rack(d) == rack {
			n++
		}
	}
	return n
}

func (b *balancer) rack(d moraine.DeviceID) string {
	if device := b.view.Devices[uint32(d)]; device != nil {
		return b.view.Hosts[device.Host].GetRack()
	}
	return ""
}
