package stripeio

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// TestTakePieces: pieces are divided, in order and each byte once, into parts that fit into a
// stripe and into one commit.
func TestTakePieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var pieces []Located
		at := int64(0)
		for range 1 + rng.IntN(600) {
			at += rng.Int64N(2) * rng.Int64N(5000)
			e := Located{Extent: moraine.Extent{Offset: at, Length: 1 + rng.Int64N(2000), Stripe: moraine.StripeID(rng.Uint64N(9)), StripeOffset: rng.Int64N(1000)}}
			pieces, at = append(pieces, e), e.End()
		}
		size := 500 + rng.Int64N(100_000)
		var got []Located
		for rest := pieces; len(rest) > 0; {
			var part []Located
			part, rest = takePieces(rest, size)
			var length int64
			runs, last := 0, int64(-1)
			for _, e := range part {
				if length += e.Length; e.Offset != last {
					runs++
				}
				last = e.End()
			}
			require.NotEmpty(t, part)
			require.LessOrEqual(t, length, size)
			require.LessOrEqual(t, runs, maxRewrittenRuns)
			require.LessOrEqual(t, len(part), maxRewrittenPieces)
			if len(rest) > 0 && runs < maxRewrittenRuns && len(part) < maxRewrittenPieces {
				require.Equal(t, size, length, "a stripe that is followed by another is full")
			}
			got = append(got, part...)
		}
		// Join pieces that a stripe's end has cut.
		var joined []Located
		for _, e := range got {
			if n := len(joined); n > 0 {
				if l := &joined[n-1]; l.Stripe == e.Stripe && l.End() == e.Offset && l.StripeOffset+l.Length == e.StripeOffset && len(joined) <= len(pieces) && pieces[n-1].Length > l.Length {
					l.Length += e.Length
					continue
				}
			}
			joined = append(joined, e)
		}
		require.Equal(t, pieces, joined)
	}
}

// TestAppendExtent: extents that follow each other both in a stripe and in the file are merged,
// and no others.
func TestAppendExtent(t *testing.T) {
	var got []*wire.Extent
	for _, e := range []*wire.Extent{
		{Offset: 0, Length: 10, Stripe: 1, StripeOffset: 0},
		{Offset: 10, Length: 5, Stripe: 1, StripeOffset: 10}, // continues
		{Offset: 20, Length: 5, Stripe: 1, StripeOffset: 15}, // elsewhere in the file
		{Offset: 25, Length: 5, Stripe: 1, StripeOffset: 30}, // elsewhere in the stripe
		{Offset: 30, Length: 5, Stripe: 2, StripeOffset: 35}, // another stripe
		{Offset: 35, Length: 1, Stripe: 2, StripeOffset: 40},
	} {
		got = appendExtent(got, e)
	}
	var lengths []uint64
	for _, e := range got {
		lengths = append(lengths, e.Length)
	}
	require.Equal(t, []uint64{15, 5, 5, 6}, lengths)
}
