package client

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/clock"
)

// stepped is a clock whose wall time is set back by an hour, while its monotonic time goes on.
type stepped struct {
	clock.System
	passed time.Duration
	back   time.Duration
}

func (s *stepped) Now() time.Time {
	t := origin.Add(s.passed)
	// The seconds of a Time with a monotonic reading are above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&t)) -= uint64(s.back/time.Second) << 30
	return t
}

func (s *stepped) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

var origin = time.Now()

// TestAClockThatIsSetBackDoesNotDeceive: neither does a session that may be over count as
// renewed for an hour, nor is the topology not refreshed for as long.
func TestAClockThatIsSetBackDoesNotDeceive(t *testing.T) {
	c := &stepped{}
	m := &metaConn{clock: c}
	s := &session{term: 15 * time.Second}
	top := &topologyCache{meta: m}
	now := c.Now()
	s.renewed.Store(&now)
	top.lastAsked.Store(&now)
	require.False(t, m.doubtful(s))
	require.True(t, top.askedJustNow())
	c.passed, c.back = time.Minute, time.Hour
	require.True(t, m.doubtful(s))
	require.False(t, top.askedJustNow())
}
