package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A stripe's record comes back as it was sent, and what is none is refused.
func TestStripeRecordTravels(t *testing.T) {
	s := moraine.Stripe{ID: 7, Scheme: moraine.Scheme{K: 2, M: 1}, Version: 3, Tenant: 4, Length: 5000, LiveBytes: 600, RefCount: 2, KeyID: 9,
		Chunks: []moraine.ChunkState{{Device: 1, CRC: 11, Level: moraine.NVMe}, {Device: 2, CRC: 12, Level: moraine.Memory, Epoch: 5}, {Device: 3, CRC: 13, Level: moraine.NVMe}}}
	var got moraine.Stripe
	require.NoError(t, wire.StripeFromWire(&got, wire.StripeToWire(&s)))
	require.Equal(t, s, got)
	for name, spoil := range map[string]func(w *wire.Stripe){
		"no scheme":         func(w *wire.Stripe) { w.Scheme = nil },
		"a scheme too wide": func(w *wire.Stripe) { w.Scheme.M = 1 << 20 },
		"no length":         func(w *wire.Stripe) { w.Length = 0 },
		"too long":          func(w *wire.Stripe) { w.Length = 2*moraine.MaxChunkSize + 1 },
		"too few chunks":    func(w *wire.Stripe) { w.Chunks = w.Chunks[1:] },
		"cipher":            func(w *wire.Stripe) { w.Cipher = 256 },
	} {
		w := wire.StripeToWire(&s)
		spoil(w)
		require.Error(t, wire.StripeFromWire(&moraine.Stripe{}, w), name)
	}
	require.Error(t, wire.StripeFromWire(&moraine.Stripe{}, nil))
	require.Nil(t, wire.SchemeToWire(moraine.Scheme{}))
	require.Zero(t, wire.SchemeFromWire(&wire.Scheme{K: 300}))
}
