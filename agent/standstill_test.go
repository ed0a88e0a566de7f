package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/agent"
)

// TestTheFlushLetsCopiesGoFirst: writes stand still while a trainer copies into a slot, but never for
// longer than half of the time, nor if somebody is in a hurry.
func TestTheFlushLetsCopiesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s agent.Standstill
		hurry := make(chan struct{})
		stoodStill := func() time.Duration {
			began := time.Now()
			require.NoError(t, s.Wait(t.Context(), hurry))
			return time.Since(began)
		}
		require.Zero(t, stoodStill(), "nobody copies")

		one, two := s.Begin(), s.Begin()
		time.AfterFunc(20*time.Millisecond, one)
		time.AfterFunc(50*time.Millisecond, two)
		require.Equal(t, 50*time.Millisecond, stoodStill(), "until the last has copied")
		one()
		require.Zero(t, stoodStill())

		time.Sleep(agent.StandstillFor)
		stopped := s.Begin()
		require.Zero(t, stoodStill(), "the last standstill is too near")
		time.Sleep(2 * agent.StandstillFor)
		next := s.Begin()
		require.Equal(t, agent.StandstillFor, stoodStill(), "a rank that was stopped holds nobody up for longer")
		require.Zero(t, stoodStill())

		time.Sleep(2 * agent.StandstillFor)
		defer s.Begin()()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.Wait(ctx, hurry), context.Canceled)
		close(hurry)
		require.Zero(t, stoodStill(), "a push does not wait")
		stopped()
		next()
	})
}
