package sim_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
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
	waiting := (f.Detect + f.Grace).Seconds() + r.RebuildDevice/2
	want := 2 * rate * rate * waiting * sim.Year.Seconds()
	require.InEpsilon(t, want, r.OneStripe.Value, 0.05)
	require.Less(t, r.OneStripe.Low, want*1.02)
	require.Greater(t, r.OneStripe.High, want*0.98)
}

// crude is the same model without any cleverness: each stripe has its devices, and
// years go by loss by loss. It returns which part of the stripes is lost in a year.
func crude(f sim.Fleet, years float64, rng *rand.Rand) float64 {
	type stripe struct {
		at      []int
		missing int
	}
	n, all := f.Scheme.Chunks(), f.Hosts
	stripes := make([]*stripe, int(f.Stripes()))
	for i := range stripes {
		stripes[i] = &stripe{at: rng.Perm(all)[:n]}
	}
	lossRate := float64(all) * f.DeviceAFR / sim.Year.Seconds()
	graceOver := map[*stripe]float64{}
	now, end, lost := 0.0, years*sim.Year.Seconds(), 0
	perChunk := f.ChunkBytes / (f.RebuildRate * float64(f.Hosts-1))
	next := rng.ExpFloat64() / lossRate
	var queue []*stripe
	for now < end {
		slices.SortStableFunc(queue, func(a, b *stripe) int { return b.missing - a.missing })
		start, pick := math.Inf(1), -1
		for i, s := range queue {
			at := now
			if s.missing == 1 {
				at = max(now, graceOver[s])
			}
			if at < start {
				start, pick = at, i
			}
		}
		if pick >= 0 && start+perChunk*float64(queue[pick].missing) < next {
			s := queue[pick]
			now = start + perChunk*float64(s.missing)
			for i, d := range s.at {
				for d < 0 {
					if c := rng.IntN(all); !slices.Contains(s.at, c) {
						d = c
					}
				}
				s.at[i] = d
			}
			s.missing = 0
			queue = slices.Delete(queue, pick, pick+1)
			continue
		}
		if len(queue) == 0 { // the devices are equally full, as the model has it
			for _, s := range stripes {
				s.at = rng.Perm(all)[:n]
			}
		}
		now = next
		next = now + rng.ExpFloat64()/lossRate
		dead := rng.IntN(all) // and a new, empty one takes its place
		for _, s := range stripes {
			i := slices.Index(s.at, dead)
			if i < 0 {
				continue
			}
			s.at[i] = -1
			if s.missing++; s.missing == 1 {
				queue = append(queue, s)
				graceOver[s] = now + (f.Detect + f.Grace).Seconds()
			}
			if s.missing > int(f.Scheme.M) {
				lost++
				queue = slices.DeleteFunc(queue, func(o *stripe) bool { return o == s })
				s.at, s.missing = rng.Perm(all)[:n], 0
			}
		}
	}
	return float64(lost) / float64(len(stripes)) / years
}

// Where losses are frequent enough to be met by chance, the weighted episodes give
// what chance gives.
func TestAgreesWithChance(t *testing.T) {
	for _, s := range []string{"x2", "2+1", "x3", "3+2"} {
		t.Run(s, func(t *testing.T) {
			f := sim.Fleet{Scheme: scheme(t, s), Domain: sim.DomainHost, Hosts: 12, Devices: 1, DeviceBytes: 40e6, ChunkBytes: 1e6,
				DeviceAFR: 3, RebuildRate: 60, Detect: time.Second, Grace: 3 * time.Hour}
			years := 120.0
			if f.Scheme.M == 2 {
				f.DeviceAFR = 8
			}
			want := crude(f, years, rand.New(rand.NewPCG(7, 7)))
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

// More redundancy, faster rebuilds and fewer losses each make a loss less likely,
// and the same seed gives the same figures.
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

func TestDurabilityRefusesNonsense(t *testing.T) {
	for name, change := range map[string]func(*sim.Fleet){
		"no redundancy":   func(f *sim.Fleet) { f.Scheme = moraine.Copies(1) },
		"too few hosts":   func(f *sim.Fleet) { f.Hosts = 6 },
		"no losses":       func(f *sim.Fleet) { f.DeviceAFR, f.HostAFR = 0, 0 },
		"no rebuild":      func(f *sim.Fleet) { f.RebuildRate = 0 },
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
