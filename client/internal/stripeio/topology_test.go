package stripeio

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/internal/clock/clocktest"
)

// TestAClockThatIsSetBackRefreshesTheTopology: a clock that is set back must not stop refreshes
// for an hour.
func TestAClockThatIsSetBackRefreshesTheTopology(t *testing.T) {
	c := &clocktest.Hands{}
	top := &TopologyCache{meta: &session.Conn{Clock: c}}
	now := c.Now()
	top.lastAsked.Store(&now)
	require.True(t, top.askedJustNow())
	c.Slept(-time.Minute) // a minute passes
	c.Set(-time.Hour)
	require.False(t, top.askedJustNow())
}
