package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// MetadataHeapRoom is how many bytes a metadata server's heap may grow by before a garbage
// collection. Go's own rule, the size of the live heap, collects a small state all the
// time: every command leaves some KiB of garbage.
const MetadataHeapRoom = 256 << 20

// KeepHeapRoom makes the collector of this process run when the heap has grown by room bytes
// since the last collection. Where more than room bytes are live, the heap may double first,
// as by Go's rule. It returns when ctx ends, and at once where the operator has set GOGC.
func KeepHeapRoom(ctx context.Context, room uint64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := 100
	for {
		metrics.Read(live)
		if p := collectAt(live[0].Value.Uint64(), room); p != percent {
			percent = p
			debug.SetGCPercent(p)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collectAt returns by how many percent of the live heap the heap may grow.
func collectAt(live, room uint64) int {
	// An empty heap has some MiB of its own, so the result stays in bounds.
	return int(max(100, 100*room/max(live, 4<<20)))
}
