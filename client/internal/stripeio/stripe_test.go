package stripeio

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/erasure"
)

// The chunks and checksums of a stripe follow docs/formats/stripe.md, however its bytes lie in
// memory.
func TestStripeEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 6).Draw(t, "k")
		scheme := moraine.Scheme{K: uint8(k), M: uint8(rapid.IntRange(0, 3).Draw(t, "m"))}
		length := rapid.Int64Range(1, 400_000).Draw(t, "length")
		data := make([]byte, length)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
		c := &Engine{Pool: bufpool.New(bufpool.Config{}), zeros: make([]byte, erasure.PieceSize)}
		defer c.Pool.Close()
		st := stripeOf(t, c, data)
		require.NoError(t, st.encode(context.Background(), c, scheme, nil))

		chunk := scheme.ChunkLen(length)
		padded := append(append([]byte{}, data...), make([]byte, chunk*int64(k)-length)...)
		want := make([][]byte, scheme.Chunks())
		for i := range want {
			want[i] = make([]byte, chunk)
			if i < k {
				copy(want[i], padded[int64(i)*chunk:])
			}
		}
		coder, err := erasure.New(scheme)
		require.NoError(t, err)
		require.NoError(t, coder.Encode(want[:k], want[k:]))
		for i := range want {
			var got []byte
			for _, p := range st.payload(i, c.zeros) {
				got = append(got, p...)
			}
			require.Equal(t, want[i], got, "chunk %d", i)
			require.Equal(t, crc.Sum(want[i]), st.sums[i], "sum %d", i)
		}
		require.Equal(t, crc.Sum(data), st.content, "the sum of the bytes themselves")
		from := rapid.Int64Range(0, length-1).Draw(t, "from")
		to := rapid.Int64Range(from+1, length).Draw(t, "to")
		var part []byte
		for _, g := range st.cut(from, to).segs {
			part = append(part, g.b...)
		}
		require.Equal(t, data[from:to], part)
		st.Free()
		require.Zero(t, c.Pool.Stats().InUseBytes)
	})
}

// stripeOf fills a stripe with data, part of it copied and part lent.
func stripeOf(t *rapid.T, c *Engine, data []byte) *Stripe {
	st := &Stripe{}
	for len(data) > 0 {
		n := rapid.IntRange(1, len(data)).Draw(t, "piece")
		if rapid.Bool().Draw(t, "lent") {
			st.Lend(data[:n])
			data = data[n:]
			continue
		}
		for p := data[:n]; len(p) > 0; {
			took := st.Fill(p, 1<<40)
			if p = p[took:]; took == 0 {
				buf, err := c.Pool.Get(context.Background(), int(st.NextSegment(1<<20)))
				require.NoError(t, err)
				st.AddBuffer(buf)
			}
		}
		data = data[n:]
	}
	return st
}
