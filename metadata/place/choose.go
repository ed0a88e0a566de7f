package place

import (
	"math/bits"

	"github.com/morainefs/moraine"
)

// Trying hosts at random finds one in a few steps while most are eligible. With few hosts, or after
// as many misses, all hosts are inspected.
const (
	maxTries   = 24
	scanHosts  = 32
	goldenStep = 0x9e3779b97f4a7c15
)

// cost orders candidates. First comes the host with the fewest chunks of this
// stripe. Then comes one whose rack has room, then one with a device without a
// chunk of it.
type cost struct {
	onHost   int
	rackFull bool
	onDevice int
}

func (c cost) less(o cost) bool {
	if c.onHost != o.onHost {
		return c.onHost < o.onHost
	}
	if c.rackFull != o.rackFull {
		return o.rackFull
	}
	return c.onDevice < o.onDevice
}

// next chooses a device for one more chunk; false if no device may take it.
func (s *search) next() (moraine.DeviceID, bool) {
	if len(s.t.hosts) > scanHosts {
		for range maxTries {
			h := s.randomHost()
			if c, ok := s.cost(h); ok && c == (cost{}) {
				return s.device(h, 0), true
			}
		}
	}
	h, c, ok := s.scan()
	if !ok {
		return 0, false
	}
	return s.device(h, c.onDevice), true
}

// cost returns a host's cost; false if none of its devices may take a chunk.
func (s *search) cost(h int) (cost, bool) {
	host := &s.t.hosts[h]
	onHost := s.onHost(h)
	best, ok := 0, false
	for i := range host.devices {
		d := &host.devices[i]
		if !s.room(d) {
			continue
		}
		if onHost == 0 {
			best, ok = 0, true
			break
		}
		if n := s.onDevice(d.ID); !ok || n < best {
			best, ok = n, true
		}
	}
	return cost{onHost: onHost, rackFull: s.onRack(host.rack) >= s.rackCap, onDevice: best}, ok
}

// scan inspects every host and chooses, by weight, one with the lowest cost.
func (s *search) scan() (int, cost, bool) {
	var best cost
	var equal []int
	var sum uint64
	for h := range s.t.hosts {
		c, ok := s.cost(h)
		if !ok || (len(equal) > 0 && best.less(c)) {
			continue
		}
		if len(equal) == 0 || c.less(best) {
			best, equal, sum = c, equal[:0], 0
		}
		equal = append(equal, h)
		sum += s.t.hosts[h].weight
	}
	if len(equal) == 0 {
		return 0, cost{}, false
	}
	at := s.below(sum)
	for _, h := range equal {
		w := s.t.hosts[h].weight
		if at < w {
			return h, best, true
		}
		at -= w
	}
	panic("place: weights do not add up")
}

// device chooses, by weight, one of the devices of host h that may take a chunk and have used
// chunks of this stripe.
func (s *search) device(h, used int) moraine.DeviceID {
	devices := s.t.hosts[h].devices
	fits := func(d *Device) bool { return s.room(d) && s.onDevice(d.ID) == used }
	var sum uint64
	for i := range devices {
		if fits(&devices[i]) {
			sum += weight(devices[i])
		}
	}
	at := s.below(sum)
	for i := range devices {
		if !fits(&devices[i]) {
			continue
		}
		w := weight(devices[i])
		if at < w {
			return devices[i].ID
		}
		at -= w
	}
	panic("place: weights do not add up")
}

// randomHost returns a host with a probability proportional to its weight.
func (s *search) randomHost() int {
	at := s.below(s.t.total())
	lo, hi := 0, len(s.t.sums)-1
	for lo < hi {
		if mid := (lo + hi) / 2; at < s.t.sums[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// below returns a number in [0, n), n > 0. The generator is splitmix64, seeded
// by the stripe's number.
func (s *search) below(n uint64) uint64 {
	s.random += goldenStep
	z := s.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	hi, _ := bits.Mul64(z, n)
	return hi
}
