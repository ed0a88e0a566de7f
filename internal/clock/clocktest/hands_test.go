package clocktest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/clock/clocktest"
)

func TestHandsAndReadingMoveAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &clocktest.Hands{}
		var c clock.Clock = h
		began, real := c.Now(), time.Now()
		h.Set(-3 * time.Hour)
		time.Sleep(time.Second)
		require.Equal(t, time.Second, c.Since(began), "what is measured goes on")
		require.Equal(t, real.Unix()+1-3*3600, c.Now().Unix())
		require.Equal(t, time.Second-3*time.Hour, c.Now().Round(0).Sub(began.Round(0)))
		h.Set(time.Hour)
		require.Equal(t, time.Second, c.Since(began))
		require.Equal(t, real.Unix()+1+3600, c.Now().Unix())

		h.Set(0)
		time.Sleep(time.Minute)
		h.Slept(time.Minute)
		require.Equal(t, time.Second, c.Since(began), "a machine that slept measured nothing")
		require.Equal(t, real.Unix()+61, c.Now().Unix())
	})
}
