package goodput_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/morainefs/moraine/internal/goodput"
	"github.com/stretchr/testify/require"
)

var models = []goodput.Model{
	{MTBF: 4 * time.Hour, Stall: 2 * time.Second, Restore: 90 * time.Second},
	{MTBF: time.Hour, Stall: 60 * time.Second, Restore: 10 * time.Minute},
	{MTBF: 30 * time.Minute, Stall: 5 * time.Minute, Restore: 5 * time.Minute},
	{MTBF: 24 * time.Hour, Stall: 20 * time.Second},
}

// simulate trains for the given number of saves, failure by failure, and returns the share of the
// time that counted. All times are in seconds.
func simulate(rng *rand.Rand, m goodput.Model, interval time.Duration, saves int) float64 {
	mtbf, segment, restore := m.MTBF.Seconds(), (interval + m.Stall).Seconds(), m.Restore.Seconds()
	now, nextFailure := 0.0, rng.ExpFloat64()*mtbf
	// work lets the job work for d, and reports whether no failure came before its end.
	work := func(d float64) bool {
		if now+d <= nextFailure {
			now += d
			return true
		}
		now = nextFailure
		nextFailure = now + rng.ExpFloat64()*mtbf
		return false
	}
	for range saves {
		for !work(segment) {
			for !work(restore) {
			}
		}
	}
	return float64(saves) * interval.Seconds() / now
}

// TestGoodputAgainstASimulation compares the formula with a simulation, at the best interval and
// away from it.
func TestGoodputAgainstASimulation(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, m := range models {
		for _, interval := range []time.Duration{m.Daly() / 4, m.Daly(), m.Daly() * 3} {
			saves := int(3000 * m.MTBF / interval) // enough failures for 2 %
			require.InEpsilon(t, simulate(rng, m, interval, saves), m.Goodput(interval), 0.02, "%+v, %v", m, interval)
		}
	}
}

// TestIntervalsAgainstASearch finds the best interval by trying all on a grid. Daly's is as good to
// 0.2 % of the goodput, and Young's where the stall is small.
func TestIntervalsAgainstASearch(t *testing.T) {
	for _, m := range models {
		best := 0.0
		for x := m.MTBF / 2000; x < 2*m.MTBF; x += m.MTBF / 2000 {
			best = max(best, m.Goodput(x))
		}
		require.InEpsilon(t, best, m.Goodput(m.Daly()), 0.002, "%+v", m)
		if m.Stall < m.MTBF/50 {
			require.InEpsilon(t, best, m.Goodput(m.Young()), 0.01, "%+v", m)
		}
	}
}

// TestIntervals compares the formulas with values computed by hand.
func TestIntervals(t *testing.T) {
	for _, tt := range []struct {
		mtbf, stall, young, daly float64 // seconds
	}{
		{14400, 2, 240, 238.6685},     // 240 * (1 + 0.00833333/3 + 0.0000694444/9) - 2
		{20000, 100, 2000, 1933.8889}, // 2000 * (1 + 0.05/3 + 0.0025/9) - 100
		{100, 200, 200, 100},          // the stall is twice the MTBF
	} {
		m := goodput.Model{MTBF: time.Duration(tt.mtbf * 1e9), Stall: time.Duration(tt.stall * 1e9)}
		require.InDelta(t, tt.young, m.Young().Seconds(), 0.001)
		require.InDelta(t, tt.daly, m.Daly().Seconds(), 0.001)
	}
}

func TestModelsThatAreNone(t *testing.T) {
	good := goodput.Model{MTBF: time.Hour, Stall: time.Second}
	require.NoError(t, good.Check())
	require.Zero(t, good.Goodput(0))
	for _, m := range []goodput.Model{{Stall: 1}, {MTBF: 1}, {MTBF: 1, Stall: -1}, {MTBF: 1, Stall: 1, Restore: -1}} {
		require.Error(t, m.Check(), "%+v", m)
	}
	mtbf, err := goodput.OfNodes(1000*time.Hour, 250)
	require.NoError(t, err)
	require.Equal(t, 4*time.Hour, mtbf)
	_, err = goodput.OfNodes(time.Hour, 0)
	require.Error(t, err)
}
