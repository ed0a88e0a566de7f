package fleet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/metadata/fleet"
)

// TestFreedBytesAreNotMoved: deleted bytes of a device do not count as movable, also if a heartbeat
// measured before the deletion arrives after its acknowledgement. The device still gives chunks
// meanwhile.
func TestFreedBytesAreNotMoved(t *testing.T) {
	const suspect = 3 * time.Second
	now := time.Now()
	f := fleet.NewFullness(suspect, now)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	holds := func(want uint64) {
		t.Helper()
		used, gives := f.Used()
		require.Equal(t, want, used)
		require.True(t, gives)
	}
	f.Seen(800, at(0))
	holds(800)
	f.Deleted(100, at(time.Second))
	holds(700)
	f.Seen(800, at(2*time.Second)) // measured before
	holds(700)
	f.Deleted(50, at(2*time.Second))
	holds(650)
	f.Seen(650, at(5*time.Second))
	holds(650)
	for i := range 100 { // any number of deletions
		f.Deleted(1, at(5*time.Second+time.Duration(i)))
	}
	holds(550)
	f.Seen(550, at(9*time.Second))
	holds(550)
	f.Deleted(5000, at(9*time.Second))
	holds(0)
}
