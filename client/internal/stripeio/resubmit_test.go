package stripeio

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport/wire"
)

// Resubmitted stripes are compared with the checksum of the written bytes, whatever their
// number.
func TestSameBytes(t *testing.T) {
	data := []byte("what was written")
	sent := func(parts ...string) (out []SentStripe) {
		for _, p := range parts {
			out = append(out, SentStripe{Record: &wire.Stripe{Id: 7, Length: uint64(len(p))}, Crc: crc.Sum([]byte(p))})
		}
		return out
	}
	old := &sent(string(data))[0]
	require.NoError(t, sameBytes(old, sent("what was written")))
	require.NoError(t, sameBytes(old, sent("what", " was ", "written")))
	for _, other := range [][]SentStripe{nil, sent("what was"), sent("what was Written"), sent(" was ", "what", "written")} {
		require.ErrorIs(t, sameBytes(old, other), moraine.Corrupt)
	}
}
