package leases

import (
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// A lease that was recalled hotRecalls times within hotWindow is not granted for hotPause. In a
// directory with many writers each change would otherwise cause a message to all of them, for
// little benefit.
const (
	hotRecalls = 16
	hotWindow  = time.Second
	hotPause   = 3 * time.Second
)

// heat counts the recalls of a lease since a time.
type heat struct {
	count int
	since time.Time
}

// warm counts the leases that one command has recalled. The caller holds the mutex.
func (t *Table) warm(affected map[*holder][]*wire.Touch, now time.Time) {
	counted := map[uint64]bool(nil)
	for _, touches := range affected {
		for _, touch := range touches {
			if counted[touch.Lease] {
				continue
			}
			if counted == nil {
				counted = make(map[uint64]bool, 2)
			}
			counted[touch.Lease] = true
			lease := moraine.InodeID(touch.Lease)
			h := t.heat[lease]
			if now.Sub(h.since) > hotWindow && !h.hot(now) {
				h = heat{since: now}
			}
			if h.count++; h.count == hotRecalls {
				h.since = now
			}
			t.heat[lease] = h
		}
	}
}

// hot reports whether a lease must not be granted now.
func (h heat) hot(now time.Time) bool { return h.count >= hotRecalls && now.Sub(h.since) <= hotPause }
