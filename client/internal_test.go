package client

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/erasure"
	"github.com/morainefs/moraine/transport/wire"
)

// The chunks and sums of a stripe are those of docs/formats/stripe.md, however
// its bytes lie in memory.
func TestStripeEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 6).Draw(t, "k")
		scheme := moraine.Scheme{K: uint8(k), M: uint8(rapid.IntRange(0, 3).Draw(t, "m"))}
		length := rapid.Int64Range(1, 400_000).Draw(t, "length")
		data := make([]byte, length)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
		c := &Client{pool: bufpool.New(bufpool.Config{}), zeros: make([]byte, erasure.PieceSize)}
		defer c.pool.Close()
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
		st.free()
		require.Zero(t, c.pool.Stats().InUseBytes)
	})
}

// stripeOf fills a stripe with data, part copied and part lent.
func stripeOf(t *rapid.T, c *Client, data []byte) *stripe {
	st := &stripe{}
	for len(data) > 0 {
		n := rapid.IntRange(1, len(data)).Draw(t, "piece")
		if rapid.Bool().Draw(t, "lent") {
			st.lend(data[:n])
			data = data[n:]
			continue
		}
		for p := data[:n]; len(p) > 0; {
			took := st.fill(p, 1<<40)
			if p = p[took:]; took == 0 {
				buf, err := c.pool.Get(context.Background(), int(st.nextSegment(1<<20)))
				require.NoError(t, err)
				st.addBuffer(buf)
			}
		}
		data = data[n:]
	}
	return st
}

// TestDevicesThatLag: reads pass over a device that is late again and again and answers
// nothing, of one host at a time; writes do not.
func TestDevicesThatLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(clock.System{})
		lag := func(id moraine.DeviceID, host string, times int) {
			for range times {
				h.lagged(id, host)
				time.Sleep(100 * time.Millisecond)
			}
		}
		for range 10 { // at once
			h.lagged(1, "a")
		}
		require.False(t, h.avoided(1))
		h.answered(1)
		lag(1, "a", 3)
		require.False(t, h.avoided(1), "for 200 ms")
		lag(1, "a", 1)
		require.True(t, h.avoided(1))
		require.Empty(t, h.all(), "writes go there")
		lag(2, "b", 9)
		require.False(t, h.avoided(2), "another host is passed over")
		lag(3, "a", 4)
		require.True(t, h.avoided(3))
		time.Sleep(6 * time.Second)
		require.False(t, h.avoided(1))
		lag(2, "b", 4)
		require.True(t, h.avoided(2))

		lag(4, "b", 2)
		h.answered(4)
		lag(4, "b", 2)
		require.False(t, h.avoided(4), "it has answered in between")
		time.Sleep(lagMemory)
		lag(4, "b", 2)
		require.False(t, h.avoided(4), "that was long ago")
	})
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(clock.System{})
		require.Empty(t, h.all())
		var pauses []time.Duration
		for range 7 {
			h.failed(7)
			h.failed(7) // of another request that was under way
			began := time.Now()
			for h.avoided(7) {
				time.Sleep(time.Second)
			}
			pauses = append(pauses, time.Since(began))
		}
		require.LessOrEqual(t, longestPause, time.Minute, "how soon a device that is well again is used")
		require.Equal(t, []time.Duration{5e9, 10e9, 20e9, 40e9, 40e9, 40e9, 40e9}, pauses)
		h.failed(9)
		require.Equal(t, []moraine.DeviceID{9}, h.all())
		h.good(9)
		require.Empty(t, h.all())
		time.Sleep(10 * time.Minute)
		h.failed(7)
		time.Sleep(5 * time.Second)
		require.False(t, h.avoided(7), "it began anew")
	})
}

func TestPace(t *testing.T) {
	p := newPace(50 * time.Millisecond)
	require.Equal(t, 50*time.Millisecond, p.late(4<<20))
	for i := range 64 {
		p.observe(4<<20, time.Duration(i)*10*time.Millisecond)
	}
	require.InDelta(t, 600, p.late(4<<20).Milliseconds(), 15)
	require.Equal(t, 50*time.Millisecond, p.late(4<<10), "another size is another matter")
	for range 64 {
		p.observe(4<<20, time.Minute)
	}
	require.Equal(t, latest, p.late(4<<20))
	spent := 0
	for p.spend(1) {
		spent++
	}
	require.LessOrEqual(t, spent, maxCredit)
	require.False(t, p.spend(1))
	for range 10 {
		p.observe(1, 0)
	}
	require.True(t, p.spend(1), "a tenth of requests")
	require.False(t, p.spend(1))
}

// What is put anew is held against the sum of what was written, in however many stripes.
func TestSameBytes(t *testing.T) {
	data := []byte("what was written")
	sent := func(parts ...string) (out []sentStripe) {
		for _, p := range parts {
			out = append(out, sentStripe{record: &wire.Stripe{Id: 7, Length: uint64(len(p))}, crc: crc.Sum([]byte(p))})
		}
		return out
	}
	old := &sent(string(data))[0]
	require.NoError(t, sameBytes(old, sent("what was written")))
	require.NoError(t, sameBytes(old, sent("what", " was ", "written")))
	for _, other := range [][]sentStripe{nil, sent("what was"), sent("what was Written"), sent(" was ", "what", "written")} {
		require.ErrorIs(t, sameBytes(old, other), moraine.Corrupt)
	}
}
