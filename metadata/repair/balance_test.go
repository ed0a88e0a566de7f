package repair_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/place"
	"github.com/morainefs/moraine/metadata/repair"
	"github.com/morainefs/moraine/transport/wire"
)

const chunk = 4 << 20

// yard is a fleet with stripes on it.
type yard struct {
	hosts   []*wire.Host
	devices map[moraine.DeviceID]*wire.Device
	stripes []*moraine.Stripe
}

// newYard makes hosts with devices of the given capacities (in chunks) in racks, and fills those
// before added by placement.
func newYard(t *testing.T, rng *rand.Rand, capacities [][]uint64, racks, added, stripes int, scheme moraine.Scheme) *yard {
	t.Helper()
	y := &yard{devices: map[moraine.DeviceID]*wire.Device{}}
	for i, list := range capacities {
		h := &wire.Host{Id: fmt.Sprintf("n%d", i+1), Alive: true}
		if racks > 0 {
			h.Rack = fmt.Sprint("r", i%racks)
		}
		for _, c := range list {
			d := &wire.Device{Id: uint32(len(y.devices) + 1), Host: h.Id, State: in, Capacity: c * chunk}
			y.devices[moraine.DeviceID(d.Id)] = d
			h.Devices = append(h.Devices, d)
		}
		y.hosts = append(y.hosts, h)
	}
	for range stripes {
		var hosts []place.Host
		for _, h := range y.hosts[:len(y.hosts)-added] {
			p := place.Host{ID: h.Id, Rack: h.Rack, Alive: true}
			for _, d := range h.Devices {
				p.Devices = append(p.Devices, place.Device{ID: moraine.DeviceID(d.Id), Capacity: d.Capacity, Free: d.Capacity - d.Used, Takes: true})
			}
			hosts = append(hosts, p)
		}
		s := &moraine.Stripe{ID: moraine.StripeID(rng.Uint64()), Scheme: scheme, Version: 1, Length: int64(scheme.K) * chunk}
		p, err := place.Place(place.NewTopology(hosts), place.Request{Stripe: s.ID, Scheme: scheme, ChunkLength: chunk})
		require.NoError(t, err)
		for _, d := range p.Devices {
			s.Chunks = append(s.Chunks, moraine.ChunkState{Device: d, Level: moraine.NVMe})
			y.devices[d].Used += chunk
		}
		y.stripes = append(y.stripes, s)
	}
	return y
}

func (y *yard) host(d moraine.DeviceID) string { return y.devices[d].Host }

// spread counts a stripe's hosts, and its most chunks in one rack.
func (y *yard) spread(s *moraine.Stripe) (hosts, inRack int) {
	seen, racks := map[string]bool{}, map[string]int{}
	for _, c := range s.Chunks {
		for _, h := range y.hosts {
			if h.Id == y.host(c.Device) {
				seen[h.Id] = true
				racks[h.Rack]++
				inRack = max(inRack, racks[h.Rack])
			}
		}
	}
	return len(seen), inRack
}

// round plans and applies a round, and checks every move against the rules.
func (y *yard) round(t *testing.T, band float64, budget int64) repair.Balanced {
	t.Helper()
	plan := repair.PlanBalance(y.hosts, y.stripes, band, budget)
	byID := map[uint64]*moraine.Stripe{}
	for _, s := range y.stripes {
		byID[uint64(s.ID)] = s
	}
	out, into := map[string]int64{}, map[string]int64{}
	for i, m := range plan.Moves {
		s := byID[m.Stripe]
		delete(byID, m.Stripe) // once per round
		require.NotNil(t, s)
		hosts, inRack := y.spread(s)
		from, to := y.devices[s.Chunks[m.Index].Device], y.devices[moraine.DeviceID(m.Device)]
		require.Equal(t, in, to.State, "device %d takes chunks", to.Id)
		require.Greater(t, from.Used*to.Capacity, to.Used*from.Capacity, "from a fuller device to an emptier one")
		require.GreaterOrEqual(t, plan.FromAfter[i], plan.ToAfter[i], "they do not change places")
		out[from.Host] += chunk
		into[to.Host] += chunk
		from.Used, to.Used = from.Used-chunk, to.Used+chunk
		s.Chunks[m.Index].Device, s.Version = moraine.DeviceID(m.Device), s.Version+1
		after, rackAfter := y.spread(s)
		require.GreaterOrEqual(t, after, hosts, "as many hosts have a chunk of it")
		require.LessOrEqual(t, rackAfter, inRack, "no rack has more of it")
	}
	for host := range y.hosts {
		id := y.hosts[host].Id
		require.Less(t, max(out[id], into[id]), budget+chunk, "host %s gives and is given what is allowed", id)
	}
	return plan
}

// TestBalanceComesToAnEnd: for any fleet, moves soon come to an end. Every device that can be is
// then within the band, and no more chunks were moved than the imbalance required.
func TestBalanceComesToAnEnd(t *testing.T) {
	uniform := func(hosts, devices int, capacity uint64) [][]uint64 {
		out := make([][]uint64, hosts)
		for i := range out {
			for range devices {
				out[i] = append(out[i], capacity)
			}
		}
		return out
	}
	ec := moraine.Scheme{K: 4, M: 2}
	for _, tt := range []struct {
		name       string
		capacities [][]uint64
		racks      int
		added      int
		stripes    int
		scheme     moraine.Scheme
		stuck      bool // failure domains keep some devices outside the band
		spread     bool // everything on the first host is on its first device, and is spread over both
	}{
		{name: "a host is added", capacities: uniform(8, 2, 200), added: 1, stripes: 250, scheme: ec},
		{name: "three hosts of another size are added", capacities: append(uniform(7, 3, 120), uniform(3, 2, 300)...), added: 3, stripes: 250, scheme: ec},
		{name: "hosts in racks", capacities: uniform(12, 2, 150), racks: 4, added: 4, stripes: 250, scheme: ec},
		{name: "copies", capacities: uniform(5, 2, 200), added: 1, stripes: 300, scheme: moraine.Copies(3)},
		{name: "nothing to do", capacities: uniform(7, 1, 200), stripes: 100, scheme: ec},
		{name: "a small host of three: its copies cannot go elsewhere", capacities: [][]uint64{{400}, {400}, {200}}, stripes: 150,
			scheme: moraine.Copies(3), stuck: true},
		{name: "a disk is added to one of as many hosts as a stripe has chunks", capacities: [][]uint64{{200, 200}, {200}, {200}, {200}, {200}, {200}},
			stripes: 50, scheme: ec, stuck: true, spread: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testseed.From(t, 7), 1))
			y := newYard(t, rng, tt.capacities, tt.racks, tt.added, tt.stripes, tt.scheme)
			if tt.spread {
				for _, s := range y.stripes {
					for i, c := range s.Chunks {
						if c.Device == 2 {
							s.Chunks[i].Device = 1
							y.devices[1].Used, y.devices[2].Used = y.devices[1].Used+chunk, y.devices[2].Used-chunk
						}
					}
				}
			}
			const band = 0.05
			moved, need := 0, uint64(0)
			used, capacity := uint64(0), uint64(0)
			for _, d := range y.devices {
				used, capacity = used+d.Used, capacity+d.Capacity
			}
			mean := float64(used) / float64(capacity)
			for _, d := range y.devices {
				if want := uint64(mean * float64(d.Capacity)); d.Used > want {
					need += (d.Used - want + chunk - 1) / chunk
				}
			}
			var last repair.Balanced
			for range 200 {
				if last = y.round(t, band, 10*chunk); len(last.Moves) == 0 {
					break
				}
				moved += len(last.Moves)
			}
			require.Empty(t, last.Moves, "it ends")
			if tt.spread {
				require.InDelta(t, y.devices[1].Used, y.devices[2].Used, 2*chunk)
				require.Equal(t, 25, moved)
				return
			}
			require.LessOrEqual(t, moved, int(need), "chunks moved")
			if tt.stuck {
				require.NotZero(t, last.Outside)
				require.Zero(t, moved)
				return
			}
			require.Zero(t, last.Outside, "%.3f to %.3f around %.3f", last.Least, last.Most, last.Mean)
		})
	}
}

// TestBalanceLeavesAlone: a chunk is not moved to or from a device that is draining, out, full,
// silent or in maintenance, nor if its stripe is not whole.
func TestBalanceLeavesAlone(t *testing.T) {
	ec := moraine.Scheme{K: 4, M: 2}
	for name, change := range map[string]func(y *yard, added *wire.Host){
		"draining":               func(_ *yard, h *wire.Host) { h.Devices[0].State = draining },
		"out":                    func(_ *yard, h *wire.Host) { h.Devices[0].State = out },
		"silent":                 func(_ *yard, h *wire.Host) { h.Alive = false },
		"away":                   func(_ *yard, h *wire.Host) { h.MaintenanceUntil = 1 << 40 },
		"without room":           func(_ *yard, h *wire.Host) { h.Devices[0].Capacity = chunk },
		"a chunk's host is away": func(y *yard, _ *wire.Host) { y.hosts[0].MaintenanceUntil = 1 << 40 },
		"chunk is gone":          func(y *yard, _ *wire.Host) { y.hosts[0].Devices[0].State = out },
		"chunk is in memory": func(y *yard, _ *wire.Host) {
			for _, s := range y.stripes {
				s.Chunks[3].Level = moraine.Memory
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 3))
			capacities := [][]uint64{{100}, {100}, {100}, {100}, {100}, {100}, {100}}
			y := newYard(t, rng, capacities, 0, 1, 60, ec) // every stripe has a chunk on each of the first six
			require.NotEmpty(t, repair.PlanBalance(y.hosts, y.stripes, 0.05, 1<<40).Moves)
			change(y, y.hosts[6])
			require.Empty(t, repair.PlanBalance(y.hosts, y.stripes, 0.05, 1<<40).Moves)
		})
	}
}
