package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock/clocktest"
)

// TestAClockThatIsSetBackDoesNotDeceive: a clock that is set back must not make a session that
// may have ended count as renewed for an hour.
func TestAClockThatIsSetBackDoesNotDeceive(t *testing.T) {
	c := &clocktest.Hands{}
	m := &Conn{Clock: c}
	s := &Session{term: 15 * time.Second}
	now := c.Now()
	s.renewed.Store(&now)
	require.False(t, m.Doubtful(s))
	c.Slept(-time.Minute) // a minute passes
	c.Set(-time.Hour)
	require.True(t, m.Doubtful(s))
}
