package sim_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/sim"
)

func scheme(t *testing.T, s string) moraine.Scheme {
	t.Helper()
	parsed, err := moraine.ParseScheme(s)
	require.NoError(t, err)
	return parsed
}

// fleet is a hundred hosts of real devices.
func fleet(t *testing.T, s string) sim.Fleet {
	return sim.Fleet{Scheme: scheme(t, s), Domain: sim.DomainHost, Hosts: 100, Devices: 8, DeviceBytes: 4e12, ChunkBytes: 4 << 20,
		DeviceAFR: 0.02, HostAFR: 0.01, RebuildRate: 200e6, Detect: 3 * time.Second, Grace: 15 * time.Minute}
}

// Two copies can be computed by hand: a stripe is lost when the second device is
// lost before the first one's chunk is rebuilt.
func TestTwoCopiesByHand(t *testing.T) {
	f := fleet(t, "x2")
	f.HostAFR, f.Devices = 0, 1
	r, err := sim.Durability(f, 40_000, 1)
	require.NoError(t, err)
	rate := f.DeviceAFR / sim.Year.Seconds()
	waiting := f.Detect.Seconds() + r.RebuildDevice/2 // a device's host reports the failure
	want := 2 * rate * rate * waiting * sim.Year.Seconds()
	require.InEpsilon(t, want, r.OneStripe.Value, 0.05)
	require.Less(t, r.OneStripe.Low, want*1.02)
	require.Greater(t, r.OneStripe.High, want*0.98)
}

// layout knows which devices of a fleet share a domain.
type layout struct{ f sim.Fleet }

func (l layout) domain(device int) int {
	switch host := device / l.f.Devices; l.f.Domain {
	case sim.DomainHost:
		return host
	case sim.DomainRack:
		return host % l.f.Racks
	}
	return device
}

// place draws devices for chunks without one (-1), in domains of their own.
func (l layout) place(at []int, rng *rand.Rand) {
	for i, d := range at {
		for d < 0 {
			c := rng.IntN(l.f.Hosts * l.f.Devices)
			if !slices.ContainsFunc(at, func(o int) bool { return o >= 0 && l.domain(o) == l.domain(c) }) {
				d = c
			}
		}
		at[i] = d
	}
}

func (l layout) fresh(rng *rand.Rand) []int {
	at := slices.Repeat([]int{-1}, l.f.Scheme.Chunks())
	l.place(at, rng)
	return at
}

// loss draws the next loss: a device, or all devices of a host (whole).
func (l layout) loss(rng *rand.Rand) (first, n int, whole bool) {
	devices := float64(l.f.Hosts*l.f.Devices) * l.f.DeviceAFR
	if rng.Float64() < devices/(devices+float64(l.f.Hosts)*l.f.HostAFR) {
		return rng.IntN(l.f.Hosts * l.f.Devices), 1, false
	}
	return rng.IntN(l.f.Hosts) * l.f.Devices, l.f.Devices, true
}

// crude is the same model without any optimisation: each stripe has its devices,
// and years pass loss by loss. It returns the share of the stripes that are lost in
// a year.
func crude(f sim.Fleet, years float64, rng *rand.Rand) float64 {
	type stripe struct {
		at      []int
		missing int
		givenUp float64 // the last of what it misses
		down    []int   // hosts that were lost whole, with missing chunks
	}
	l := layout{f}
	stripes := make([]*stripe, int(f.Stripes()))
	for i := range stripes {
		stripes[i] = &stripe{at: l.fresh(rng)}
	}
	lossRate := (float64(f.Hosts*f.Devices)*f.DeviceAFR + float64(f.Hosts)*f.HostAFR) / sim.Year.Seconds()
	now, end, lost := 0.0, years*sim.Year.Seconds(), 0
	next := rng.ExpFloat64() / lossRate
	var queue []*stripe
	for now < end {
		down := map[int]bool{} // and rebuild nothing
		for _, s := range queue {
			for _, h := range s.down {
				down[h] = true
			}
		}
		perChunk := f.ChunkBytes / (f.RebuildRate * float64(f.Hosts-len(down)))
		start, pick := math.Inf(1), -1 // the worst of those that may begin first
		for i, s := range queue {
			at := max(now, s.givenUp)
			if at < start || at == start && s.missing > queue[pick].missing {
				start, pick = at, i
			}
		}
		if pick >= 0 && start+perChunk*float64(queue[pick].missing) < next {
			s := queue[pick]
			now = start + perChunk*float64(s.missing)
			l.place(s.at, rng)
			s.missing, s.givenUp, s.down = 0, 0, nil
			queue = slices.Delete(queue, pick, pick+1)
			continue
		}
		if len(queue) == 0 { // the devices are equally full, as in the model
			for _, s := range stripes {
				s.at = l.fresh(rng)
			}
		}
		now = next
		next = now + rng.ExpFloat64()/lossRate
		first, n, whole := l.loss(rng) // and new, empty ones replace them
		givenUp := now + f.Detect.Seconds()
		if whole {
			givenUp += f.Grace.Seconds()
		}
		for _, s := range stripes {
			before := s.missing
			for i, d := range s.at {
				if d >= first && d < first+n {
					s.at[i] = -1
					s.missing++
					s.givenUp = max(s.givenUp, givenUp)
					if n == f.Devices {
						s.down = append(s.down, first/f.Devices)
					}
				}
			}
			if before == 0 && s.missing > 0 {
				queue = append(queue, s)
			}
			if s.missing > int(f.Scheme.M) {
				lost++
				queue = slices.DeleteFunc(queue, func(o *stripe) bool { return o == s })
				s.at, s.missing, s.givenUp, s.down = l.fresh(rng), 0, 0, nil
			}
		}
	}
	return float64(lost) / float64(len(stripes)) / years
}

// If losses are frequent enough to occur by chance, the weighted episodes agree
// with chance: for devices alone, and for devices and hosts in each domain.
func TestAgreesWithChance(t *testing.T) {
	runs := testseed.Sample(t, 7) // chance takes long: the short form runs one row, newly drawn
	for name, change := range map[string]func(*sim.Fleet){
		"x2":                              func(f *sim.Fleet) {},
		"2+1":                             func(f *sim.Fleet) {},
		"x3":                              func(f *sim.Fleet) { f.DeviceAFR = 16 },
		"3+2":                             func(f *sim.Fleet) { f.DeviceAFR = 8 },
		"2+1 on hosts of three":           func(f *sim.Fleet) { f.Hosts, f.Devices, f.HostAFR = 6, 3, 1 },
		"2+1 of racks of two hosts":       func(f *sim.Fleet) { f.Domain, f.Racks, f.Hosts, f.Devices, f.HostAFR = sim.DomainRack, 5, 10, 2, 1 },
		"2+1 of devices, hosts are alike": func(f *sim.Fleet) { f.Domain, f.Hosts, f.Devices, f.HostAFR = sim.DomainDevice, 6, 2, 0 },
	} {
		if !runs() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s, _, _ := strings.Cut(name, " ")
			f := sim.Fleet{Scheme: scheme(t, s), Domain: sim.DomainHost, Hosts: 12, Devices: 1, DeviceBytes: 80e6, ChunkBytes: 1e6,
				DeviceAFR: 3, RebuildRate: 120, Detect: time.Second, Grace: 3 * time.Hour}
			change(&f)
			const years, courses = 60, 4
			want := 0.0
			for seed := range uint64(courses) {
				want += crude(f, years, rand.New(rand.NewPCG(seed, 7))) / courses
			}
			r, err := sim.Durability(f, 20_000, 7)
			require.NoError(t, err)
			t.Logf("by chance %.3g, by episodes %.3g (%.3g to %.3g)", want, r.OneStripe.Value, r.OneStripe.Low, r.OneStripe.High)
			require.InEpsilon(t, want, -math.Log1p(-r.OneStripe.Value), 0.25)
		})
	}
}

// Independent draws agree within their intervals, with losses of whole hosts too.
func TestSeedsAgree(t *testing.T) {
	f := fleet(t, "4+2")
	all, err := sim.Durability(f, 40_000, 100)
	require.NoError(t, err)
	for seed := range uint64(5) {
		r, err := sim.Durability(f, 10_000, seed)
		require.NoError(t, err)
		half := (r.OneStripe.High - r.OneStripe.Low) / 2
		require.InDelta(t, all.OneStripe.Value, r.OneStripe.Value, 2.5*half, "seed %d: %v, %v", seed, r, all)
		require.Less(t, half, 0.2*r.OneStripe.Value)
	}
}

// More redundancy, faster rebuilds and fewer losses each make a loss less likely.
// The same seed gives the same figures.
func TestDurabilityIsOrdered(t *testing.T) {
	of := func(f sim.Fleet) float64 {
		r, err := sim.Durability(f, 8_000, 3)
		require.NoError(t, err)
		require.LessOrEqual(t, r.OneStripe.Value, r.AnyStripe.Value)
		again, err := sim.Durability(f, 8_000, 3)
		require.NoError(t, err)
		require.Equal(t, r, again)
		return r.OneStripe.Value
	}
	base := of(fleet(t, "4+2"))
	require.Positive(t, base)
	require.Less(t, of(fleet(t, "8+3")), base)
	require.Greater(t, of(fleet(t, "x2")), base)
	slow, frail := fleet(t, "4+2"), fleet(t, "4+2")
	slow.RebuildRate /= 20
	frail.DeviceAFR *= 4
	require.Greater(t, of(slow), base)
	require.Greater(t, of(frail), base)
}

// The leader's rate limits what many hosts could rebuild.
func TestARebuildIsBoundedByWhatIsGivenOut(t *testing.T) {
	free, bound := fleet(t, "4+2"), fleet(t, "4+2")
	bound.StripesPerSecond = 256
	a, err := sim.Durability(free, 8_000, 3)
	require.NoError(t, err)
	b, err := sim.Durability(bound, 8_000, 3)
	require.NoError(t, err)
	require.InEpsilon(t, bound.DeviceBytes/(256*bound.ChunkBytes), b.RebuildDevice, 1e-9)
	require.Greater(t, b.RebuildDevice, 10*a.RebuildDevice)
	require.Greater(t, b.OneStripe.Value, 10*a.OneStripe.Value)
	bound.StripesPerSecond = 1e9
	b, err = sim.Durability(bound, 8_000, 3)
	require.NoError(t, err)
	require.Equal(t, a, b)
}

func TestDurabilityRefusesNonsense(t *testing.T) {
	for name, change := range map[string]func(*sim.Fleet){
		"no redundancy":   func(f *sim.Fleet) { f.Scheme = moraine.Copies(1) },
		"too few hosts":   func(f *sim.Fleet) { f.Hosts = 6 },
		"no losses":       func(f *sim.Fleet) { f.DeviceAFR, f.HostAFR = 0, 0 },
		"no rebuild":      func(f *sim.Fleet) { f.RebuildRate = 0 },
		"uneven racks":    func(f *sim.Fleet) { f.Domain, f.Racks = sim.DomainRack, 7 },
		"too few racks":   func(f *sim.Fleet) { f.Domain, f.Racks = sim.DomainRack, 5 },
		"a domain":        func(f *sim.Fleet) { f.Domain = "planet" },
		"never caught up": func(f *sim.Fleet) { f.RebuildRate, f.DeviceAFR = 1000, 10 },
	} {
		f := fleet(t, "4+2")
		change(&f)
		_, err := sim.Durability(f, 1000, 1)
		require.ErrorIs(t, err, moraine.InvalidArgument, name)
	}
	_, err := sim.Durability(fleet(t, "4+2"), 5, 1)
	require.ErrorIs(t, err, moraine.InvalidArgument)
}
