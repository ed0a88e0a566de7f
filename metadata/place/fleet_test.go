package place_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/place"
)

// fleetSim simulates a cluster of the target size, in numbers only: what is on each device, and
// which hosts share stripes with the lost one.
type fleetSim struct {
	hosts, devices int
	chunk          uint64   // bytes
	capacity       []uint64 // in chunks, by device
	used           []atomic.Int64
	lost           int
	partners       []atomic.Bool // hosts with chunks of stripes of the lost one
}

func newFleetSim(hosts, devices int) *fleetSim {
	s := &fleetSim{hosts: hosts, devices: devices, chunk: 4 << 20, lost: hosts / 3,
		capacity: make([]uint64, hosts*devices), used: make([]atomic.Int64, hosts*devices), partners: make([]atomic.Bool, hosts)}
	for i := range s.capacity {
		s.capacity[i] = 240
		if i/devices%4 == 0 { // every fourth host has disks half as large again
			s.capacity[i] = 360
		}
	}
	return s
}

// topology is what the heartbeats report about the devices now.
func (s *fleetSim) topology() *place.Topology {
	hosts := make([]place.Host, s.hosts)
	for h := range hosts {
		hosts[h] = place.Host{ID: fmt.Sprintf("n%04d", h), Rack: fmt.Sprintf("r%02d", h/max(s.hosts/75, 1)), Alive: true}
		for d := range s.devices {
			i := h*s.devices + d
			free := max(int64(s.capacity[i])-s.used[i].Load(), 0)
			hosts[h].Devices = append(hosts[h].Devices, place.Device{ID: moraine.DeviceID(i + 1),
				Capacity: s.capacity[i] * s.chunk, Free: uint64(free) * s.chunk, Takes: true})
		}
	}
	return place.NewTopology(hosts)
}

// put places n stripes from number first on, using t.
func (s *fleetSim) put(t *place.Topology, first, n int) error {
	for i := range n {
		p, err := place.Place(t, place.Request{Stripe: moraine.StripeID(1<<40 + first + i),
			Scheme: moraine.Scheme{K: 4, M: 2}, ChunkLength: s.chunk})
		if err != nil {
			return err
		}
		if p.Protects != 2 {
			return fmt.Errorf("stripe %d survives the loss of %d hosts", first+i, p.Protects)
		}
		hit := false
		for _, d := range p.Devices {
			s.used[d-1].Add(1)
			hit = hit || int(d-1)/s.devices == s.lost
		}
		for _, d := range p.Devices {
			if hit {
				s.partners[int(d-1)/s.devices].Store(true)
			}
		}
	}
	return nil
}

// TestThreeThousandHosts fills 3,000 hosts of 12 devices, in racks of 40 and of two sizes, to nine
// tenths. The topology is refreshed as often as a second of full load would. The worst device must
// be within 10% of the mean, and a lost host must be rebuilt from more than 95% of the others.
// These devices have room for hundreds of chunks, real ones for a million. The random spread
// shrinks with the square root of that, so that real devices are much closer to the mean.
func TestThreeThousandHosts(t *testing.T) {
	const hosts, devices, workers, rounds = simulatedHosts, 12, 2, 40
	s := newFleetSim(hosts, devices)
	total := uint64(0)
	for _, c := range s.capacity {
		total += c
	}
	stripes := int(float64(total) * 0.9 / 6)
	each := stripes / (rounds * workers)
	for round := range rounds {
		top := s.topology()
		var wg sync.WaitGroup
		errs := make([]error, workers)
		for w := range workers {
			wg.Go(func() { errs[w] = s.put(top, (round*workers+w)*each, each) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
	mean, worst, least := float64(stripes*6)/float64(total), 0.0, math.Inf(1)
	for i, c := range s.capacity {
		load := float64(s.used[i].Load()) / float64(c)
		worst, least = max(worst, load), min(least, load)
	}
	sources := 0
	for h := range s.partners {
		if h != s.lost && s.partners[h].Load() {
			sources++
		}
	}
	t.Logf("%d stripes: devices are filled to %.4f in the mean, %.4f at most (%+.1f%%), %.4f at least (%+.1f%%); a lost host is rebuilt from %d of %d others",
		stripes, mean, worst, 100*(worst/mean-1), least, 100*(least/mean-1), sources, hosts-1)
	require.LessOrEqual(t, worst, 1.1*mean, "the fullest device")
	require.Greater(t, sources, (hosts-1)*95/100)
}
