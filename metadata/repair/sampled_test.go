package repair_test

import (
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata/repair"
	"github.com/morainefs/moraine/transport/wire"
)

// TestSampledStripes: of 100,000 stripes a scrub's sample of 1% has about 1,000. They are the same
// when a slice of the pass is reported again, and another pass samples others. A share of all
// samples all; a share of none, or no scrub, samples none.
func TestSampledStripes(t *testing.T) {
	const stripes = 100_000
	sample := func(slice *wire.ReportChunks) map[uint64]bool {
		out := map[uint64]bool{}
		for n := range uint64(stripes) {
			if stripe := 1<<40 + n; repair.Sampled(stripe, slice) { // consecutive numbers, as in grants
				out[stripe] = true
			}
		}
		return out
	}
	scrub := func(share uint32, pass uint64) map[uint64]bool {
		return sample(&wire.ReportChunks{Scrub: true, ParitySample: share, PassStarted: pass})
	}
	for _, tt := range []struct {
		share uint32 // in units of 1/10,000
		want  int
	}{{1, 10}, {50, 500}, {100, 1000}, {5000, 50_000}, {9900, 99_000}} {
		seen := map[uint64]bool{}
		const passes = 8
		for pass := range uint64(passes) {
			one := scrub(tt.share, 1000+pass)
			p := float64(tt.share) / 10_000
			require.InDelta(t, tt.want, len(one), 6*math.Sqrt(stripes*p*(1-p)), "share %d, pass %d", tt.share, pass) // six standard deviations
			require.True(t, maps.Equal(one, scrub(tt.share, 1000+pass)), "the sample of one pass")
			for stripe := range one {
				seen[stripe] = true
			}
		}
		// Samples are independent: the part that no pass has is (1-share)^passes.
		left := 1.0
		for range passes {
			left *= 1 - float64(tt.share)/10_000
		}
		require.InDelta(t, stripes*(1-left), len(seen), 20+0.05*stripes*(1-left), "share %d: the passes have other stripes", tt.share)
	}
	require.Len(t, scrub(10_000, 7), stripes)
	require.Empty(t, scrub(0, 7))
	require.Empty(t, sample(&wire.ReportChunks{ParitySample: 10_000, PassStarted: 7}), "a report is no scrub")
}
