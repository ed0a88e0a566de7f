package place_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/place"
)

const gib = 1 << 30

// cluster makes hosts with devices of 100 GiB, empty, in one rack.
func cluster(hosts, devices int) []place.Host {
	out := make([]place.Host, hosts)
	for h := range out {
		out[h] = place.Host{ID: fmt.Sprintf("n%03d", h+1), Alive: true}
		for d := range devices {
			out[h].Devices = append(out[h].Devices, place.Device{
				ID: moraine.DeviceID(h*devices + d + 1), Capacity: 100 * gib, Free: 100 * gib, Takes: true,
			})
		}
	}
	return out
}

func kill(hosts []place.Host, n int) []place.Host {
	for i := range n {
		hosts[i].Alive = false
	}
	return hosts
}

func scheme(t testing.TB, s string) moraine.Scheme {
	t.Helper()
	parsed, err := moraine.ParseScheme(s)
	require.NoError(t, err)
	return parsed
}

func TestLeastProtection(t *testing.T) {
	tests := []struct {
		name     string
		hosts    []place.Host
		scheme   string
		repair   bool
		min      int
		want     string // scheme
		protects int
		degraded bool
		kind     moraine.Kind
		fails    bool
	}{
		{name: "all of six hosts", hosts: cluster(6, 1), scheme: "4+2", want: "4+2", protects: 2},
		{name: "one of six down", hosts: kill(cluster(6, 1), 1), scheme: "4+2", want: "4+2", protects: 1, degraded: true},
		{name: "three of six down", hosts: kill(cluster(6, 1), 3), scheme: "4+2", want: "4+2", protects: 1, degraded: true},
		{name: "four of six down: copies on the two left", hosts: kill(cluster(6, 1), 4), scheme: "4+2", want: "x2", protects: 1, degraded: true},
		{name: "five of six down", hosts: kill(cluster(6, 2), 5), scheme: "4+2", fails: true, kind: moraine.Unavailable},
		{name: "none left", hosts: kill(cluster(6, 2), 6), scheme: "4+2", fails: true, kind: moraine.Unavailable},
		{name: "repair takes what there is", hosts: kill(cluster(6, 2), 5), scheme: "4+2", repair: true, want: "4+2", protects: 0, degraded: true},
		{name: "three copies on three hosts", hosts: cluster(3, 2), scheme: "x3", want: "x3", protects: 2},
		{name: "three copies, two hosts left", hosts: kill(cluster(3, 2), 1), scheme: "x3", want: "x3", protects: 1, degraded: true},
		{name: "two copies on two hosts", hosts: cluster(2, 1), scheme: "x2", want: "x2", protects: 1},
		{name: "two copies, one host left", hosts: kill(cluster(2, 4), 1), scheme: "x2", fails: true, kind: moraine.Unavailable},
		{name: "no redundancy asked for", hosts: kill(cluster(6, 1), 5), scheme: "x1", want: "x1", protects: 0},
		{name: "stripes without parity", hosts: kill(cluster(6, 1), 5), scheme: "4+0", want: "4+0", protects: 0},
		{name: "single host, six devices", hosts: cluster(1, 6), scheme: "4+2", want: "4+2", protects: 2},
		{name: "single host, three devices", hosts: cluster(1, 3), scheme: "4+2", want: "4+2", protects: 1, degraded: true},
		{name: "single host, two devices", hosts: cluster(1, 2), scheme: "x2", want: "x2", protects: 1},
		{name: "single host, two devices, 4+2", hosts: cluster(1, 2), scheme: "4+2", want: "x2", protects: 1, degraded: true},
		{name: "two, all of six hosts", hosts: cluster(6, 1), scheme: "4+2", min: 2, want: "4+2", protects: 2},
		{name: "two, one of six down", hosts: kill(cluster(6, 1), 1), scheme: "4+2", min: 2, want: "x3", protects: 2},
		{name: "two, four of six down", hosts: kill(cluster(6, 1), 4), scheme: "4+2", min: 2, fails: true, kind: moraine.Unavailable},
		{name: "two, of a scheme that gives one", hosts: cluster(6, 1), scheme: "x2", min: 2, want: "x2", protects: 1},
		{name: "two, repair takes what there is", hosts: kill(cluster(6, 2), 5), scheme: "4+2", min: 2, repair: true, want: "4+2", protects: 0, degraded: true},
		{name: "single device", hosts: cluster(1, 1), scheme: "x1", want: "x1", protects: 0},
		{name: "single device, two copies", hosts: cluster(1, 1), scheme: "x2", want: "x2", protects: 0, degraded: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := place.Place(place.NewTopology(tt.hosts), place.Request{
				Stripe: 77, Scheme: scheme(t, tt.scheme), ChunkLength: 4 << 20, Repair: tt.repair, MinProtection: tt.min,
			})
			if tt.fails {
				require.ErrorIs(t, err, tt.kind)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got.Scheme.String())
			require.Equal(t, tt.protects, got.Protects)
			require.Equal(t, tt.degraded, got.Degraded)
			require.Len(t, got.Devices, got.Scheme.Chunks())
			require.NotContains(t, got.Devices, moraine.DeviceID(0))
		})
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	req := place.Request{Stripe: 1, Scheme: scheme(t, "4+2"), ChunkLength: 4 << 20}
	_, err := place.Place(place.NewTopology(kill(cluster(6, 1), 5)), req)
	require.EqualError(t, err, "place: 1: unavailable: a stripe must survive the loss of any 1 host. Of 6 hosts 1 take chunks and 1 have room for 4194304 bytes: start more chunkservers, or add space")

	full := cluster(6, 1)
	for i := range full {
		full[i].Devices[0].Free = 0
	}
	_, err = place.Place(place.NewTopology(full), req)
	require.ErrorIs(t, err, moraine.NoSpace)

	for i := range full[:5] {
		full[i].Devices[0].Free = 1 * gib // less than the reserve of 2 GiB
	}
	full[5].Devices[0].Free = 3 * gib
	_, err = place.Place(place.NewTopology(full), req)
	require.ErrorIs(t, err, moraine.NoSpace, "hosts are alive; it is room that they lack")

	_, err = place.Place(place.NewTopology(nil), req)
	require.ErrorIs(t, err, moraine.Unavailable)
	_, err = place.Place(place.NewTopology(cluster(6, 1)), place.Request{Scheme: moraine.Scheme{}})
	require.ErrorIs(t, err, moraine.InvalidArgument)
	req.Keep = make([]moraine.DeviceID, 3)
	_, err = place.Place(place.NewTopology(cluster(6, 1)), req)
	require.ErrorIs(t, err, moraine.InvalidArgument)
}

func TestRepairMayFillTheReserve(t *testing.T) {
	hosts := cluster(6, 1)
	for i := range hosts {
		hosts[i].Devices[0].Free = 1 * gib
	}
	req := place.Request{Stripe: 5, Scheme: scheme(t, "4+2"), ChunkLength: 4 << 20}
	_, err := place.Place(place.NewTopology(hosts), req)
	require.ErrorIs(t, err, moraine.NoSpace)
	req.Repair = true
	got, err := place.Place(place.NewTopology(hosts), req)
	require.NoError(t, err)
	require.Equal(t, 2, got.Protects)
}

func TestAvoidAndKeep(t *testing.T) {
	top := place.NewTopology(cluster(7, 2))
	for stripe := range 200 {
		req := place.Request{Stripe: moraine.StripeID(stripe), Scheme: scheme(t, "4+2"), ChunkLength: 1}
		first, err := place.Place(top, req)
		require.NoError(t, err)

		req.Avoid = []moraine.DeviceID{first.Devices[1], first.Devices[4]}
		req.Keep = slices.Clone(first.Devices)
		req.Keep[1], req.Keep[4] = 0, 0
		second, err := place.Place(top, req)
		require.NoError(t, err)
		for i, d := range second.Devices {
			if req.Keep[i] != 0 {
				require.Equal(t, req.Keep[i], d, "index %d was to be kept", i)
			} else {
				require.NotContains(t, req.Avoid, d)
			}
		}
		require.Equal(t, 2, second.Protects, "the other device of the same host, or the seventh host, is free")
	}
}

func TestKeepDoesNotChangeTheScheme(t *testing.T) {
	top := place.NewTopology(kill(cluster(6, 1), 4))
	_, err := place.Place(top, place.Request{
		Stripe: 9, Scheme: scheme(t, "4+2"), Keep: []moraine.DeviceID{5, 6, 5, 6, 5, 0},
	})
	require.ErrorIs(t, err, moraine.Unavailable)
}

func TestChunkOnUnknownDeviceProtectsNothing(t *testing.T) {
	top := place.NewTopology(cluster(6, 1))
	got, err := place.Place(top, place.Request{
		Stripe: 9, Scheme: scheme(t, "4+2"), Keep: []moraine.DeviceID{99, 1, 2, 3, 4, 0}, Repair: true,
	})
	require.NoError(t, err)
	require.Equal(t, 1, got.Protects)
}

func TestRacks(t *testing.T) {
	// Three racks of four hosts: 4+2 places two chunks in each, and survives the loss of a rack.
	hosts := cluster(12, 1)
	for i := range hosts {
		hosts[i].Rack = fmt.Sprintf("r%d", i/4)
	}
	top := place.NewTopology(hosts)
	for stripe := range 500 {
		got, err := place.Place(top, place.Request{Stripe: moraine.StripeID(stripe), Scheme: scheme(t, "4+2")})
		require.NoError(t, err)
		racks := map[string]int{}
		for _, d := range got.Devices {
			racks[hosts[(d-1)].Rack]++
		}
		require.Equal(t, map[string]int{"r0": 2, "r1": 2, "r2": 2}, racks)
		require.Equal(t, 2, got.Protects)
	}
}

func TestSmallRackIsNotOverloaded(t *testing.T) {
	// With two racks, 4+2 cannot survive the loss of one. A rack of one host must then not get a
	// chunk of every stripe.
	hosts := cluster(21, 1)
	for i := range hosts {
		hosts[i].Rack = "big"
	}
	hosts[20].Rack = "small"
	top := place.NewTopology(hosts)
	onSmall := 0
	for stripe := range 2000 {
		got, err := place.Place(top, place.Request{Stripe: moraine.StripeID(stripe), Scheme: scheme(t, "4+2")})
		require.NoError(t, err)
		if slices.Contains(got.Devices, 21) {
			onSmall++
		}
	}
	require.InDelta(t, 2000*6/21, onSmall, 100)
}

func TestSameRequestSameAnswer(t *testing.T) {
	a, b := cluster(50, 2), cluster(50, 2)
	slices.Reverse(b)
	ta, tb := place.NewTopology(a), place.NewTopology(b)
	for stripe := range 300 {
		req := place.Request{Stripe: moraine.StripeID(stripe), Scheme: scheme(t, "4+2")}
		pa, errA := place.Place(ta, req)
		pb, errB := place.Place(tb, req)
		require.NoError(t, errA)
		require.NoError(t, errB)
		require.Equal(t, pa, pb)
	}
}

// TestDistribution simulates a few hundred hosts: every host gets its share by free space, and each
// host shares stripes with all the others.
func TestDistribution(t *testing.T) {
	const hosts, devices, stripes = 300, 2, 60000
	all := cluster(hosts, devices)
	for i := range all {
		all[i].Rack = fmt.Sprintf("r%02d", i%15)
		if i%3 == 0 {
			for d := range all[i].Devices {
				all[i].Devices[d].Free /= 2
			}
		}
	}
	top := place.NewTopology(all)
	chunks := make([]int, hosts)
	partners := make(map[int]int) // of host 7
	for stripe := range stripes {
		got, err := place.Place(top, place.Request{Stripe: moraine.StripeID(1<<40 + stripe), Scheme: scheme(t, "4+2"), ChunkLength: 4 << 20})
		require.NoError(t, err)
		require.Equal(t, 2, got.Protects)
		on := make([]int, 0, 6)
		for _, d := range got.Devices {
			on = append(on, int(d-1)/devices)
		}
		for _, h := range on {
			chunks[h]++
		}
		if slices.Contains(on, 7) {
			for _, h := range on {
				partners[h]++
			}
		}
	}
	full := float64(stripes*6) / (hosts*2/3 + hosts/3*0.5)
	for h, n := range chunks {
		want := full
		if h%3 == 0 {
			want /= 2
		}
		require.InDelta(t, want, n, 6*math.Sqrt(want), "chunks on host %d", h)
	}
	require.Greater(t, len(partners), hosts*9/10, "a lost host is rebuilt from nearly all the others")
}

// TestProtectsIsTrue checks the answer by its definition: losing any Protects hosts leaves at least
// k chunks, and losing some one more does not.
func TestProtectsIsTrue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hosts := cluster(rapid.IntRange(1, 9).Draw(rt, "hosts"), rapid.IntRange(1, 3).Draw(rt, "devices"))
		for i := range hosts {
			hosts[i].Alive = rapid.IntRange(0, 3).Draw(rt, "alive") > 0
			hosts[i].Rack = rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "rack")
			for d := range hosts[i].Devices {
				hosts[i].Devices[d].Takes = rapid.IntRange(0, 4).Draw(rt, "takes") > 0
			}
		}
		s := scheme(t, rapid.SampledFrom([]string{"4+2", "x2", "x3", "2+1", "8+3"}).Draw(rt, "scheme"))
		perHost := len(hosts[0].Devices)
		single := len(hosts) == 1
		got, err := place.Place(place.NewTopology(hosts), place.Request{
			Stripe: moraine.StripeID(rapid.Uint64().Draw(rt, "stripe")), Scheme: s, Repair: rapid.Bool().Draw(rt, "repair"),
		})
		if err != nil {
			if !errors.Is(err, moraine.Unavailable) {
				rt.Fatalf("%v", err)
			}
			return
		}
		counts := map[int]int{}
		for _, d := range got.Devices {
			h := int(d-1) / perHost
			if !hosts[h].Alive || !hosts[h].Devices[int(d-1)%perHost].Takes {
				rt.Fatalf("device %d takes nothing", d)
			}
			if single {
				h = int(d)
			}
			counts[h]++
		}
		sizes := make([]int, 0, len(counts))
		for _, n := range counts {
			sizes = append(sizes, n)
		}
		slices.Sort(sizes)
		slices.Reverse(sizes)
		lost := 0
		for i, n := range sizes {
			lost += n
			if survives := lost <= int(got.Scheme.M); survives != (i < got.Protects) {
				rt.Fatalf("counts %v protects %d", sizes, got.Protects)
			}
		}
		if !single && sizes[0]-sizes[len(sizes)-1] > 1 {
			rt.Fatalf("hosts are shared unevenly: %v", sizes)
		}
	})
}

func BenchmarkPlace3000Hosts(b *testing.B) {
	hosts := cluster(3000, 2)
	for i := range hosts {
		hosts[i].Rack = fmt.Sprintf("r%03d", i/30)
	}
	top := place.NewTopology(hosts)
	req := place.Request{Scheme: moraine.Scheme{K: 4, M: 2}, ChunkLength: 4 << 20}
	for i := 0; b.Loop(); i++ {
		req.Stripe = moraine.StripeID(i)
		if _, err := place.Place(top, req); err != nil {
			b.Fatal(err)
		}
	}
}
