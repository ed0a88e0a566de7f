package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// metadataHeapRoom is how many bytes a metadata server's heap may grow by before it
// is collected. Go's own rule, once what is alive, makes a small state be
// collected all the time: every command leaves some KiB behind.
const metadataHeapRoom = 256 << 20

// keepHeapRoom has the collector of this process run when the heap has grown by
// room bytes since the last collection, or, as is Go's rule, by as much as was alive then
// where that is more. It returns when ctx ends. An operator's GOGC is left alone.
func keepHeapRoom(ctx context.Context, room uint64) {
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

// collectAt returns by how many percent of what is alive the heap may grow.
func collectAt(live, room uint64) int {
	// An empty heap has some MiB of its own; so the result stays in bounds.
	return int(max(100, 100*room/max(live, 4<<20)))
}
