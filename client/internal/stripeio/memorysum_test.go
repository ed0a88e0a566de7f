package stripeio

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/erasure"
)

// TestBytesThatChangeAreNotSummedAgain: a stripe is sent with a smaller scheme than it was
// encoded for, because devices left or refused a chunk. A bit that flipped in its memory
// meanwhile does not get a matching checksum.
func TestBytesThatChangeAreNotSummedAgain(t *testing.T) {
	c := &Engine{Pool: bufpool.New(bufpool.Config{}), zeros: make([]byte, erasure.PieceSize)}
	defer c.Pool.Close()
	ctx := context.Background()
	schemes := []moraine.Scheme{{K: 4, M: 2}, {K: 2, M: 1}, moraine.Copies(3), moraine.Copies(2)}
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		data := make([]byte, 1+rng.IntN(200_000))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		st := &Stripe{}
		st.Lend(data)
		from, to := schemes[rng.IntN(4)], schemes[rng.IntN(4)]
		require.NoError(t, st.encode(ctx, c, from, nil))
		require.NoError(t, st.encode(ctx, c, to, nil), "nothing has changed")
		if from == to {
			continue
		}
		data[rng.IntN(len(data))] ^= 1 << rng.IntN(8)
		require.ErrorIs(t, st.encode(ctx, c, from, nil), moraine.Corrupt, "seed %d", seed)
		require.ErrorIs(t, st.encode(ctx, c, to, nil), moraine.Corrupt, "and so every time, seed %d", seed)
		st.Free()
	}
}
