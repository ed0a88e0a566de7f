package stripeio

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
)

// TestDevicesThatLag: reads skip a device that is late again and again and answers nothing, of
// one host at a time; writes do not.
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
			h.failed(7) // of another concurrent request
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
		require.False(t, h.avoided(7), "the device began again without faults")
	})
}
