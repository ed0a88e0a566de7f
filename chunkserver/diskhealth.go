package chunkserver

import (
	"context"
	"time"

	"github.com/morainefs/moraine/transport/wire"
)

const (
	// healthEvery is how often the server reads the health of its disks.
	healthEvery = 10 * time.Minute
	// healthPatience is how long a disk may take to answer before the server logs it.
	healthPatience = time.Minute
)

// healthReader reads the health of the disks below one device.
type healthReader struct {
	deps *Deps
	d    *device
}

// run reads the health of the disks below a device repeatedly, until ctx
// ends. A disk that reports nothing now may report later.
func (hr *healthReader) run(ctx context.Context) {
	for hr.read(ctx) && sleep(ctx, hr.deps.Clock, healthEvery) {
	}
}

// read reads it once; false: ctx has ended. The read of a hanging disk stays
// in the kernel and cannot be cancelled. So it has a goroutine of its own, for
// which nothing waits when the server ends or drops the device. A device has at
// most one.
func (hr *healthReader) read(ctx context.Context) bool {
	answer := make(chan *wire.DiskHealth, 1)
	go func() { answer <- hr.deps.DiskHealth(hr.d.dir) }()
	late := hr.deps.Clock.After(healthPatience)
	for {
		select {
		case h := <-answer:
			hr.keep(h)
			return true
		case <-late:
			hr.deps.Log.Warn("disk health read delayed", "device", hr.d.dir)
		case <-ctx.Done():
			return false
		}
	}
}

// keep stores what the disks reported, for the next heartbeat.
func (hr *healthReader) keep(h *wire.DiskHealth) {
	was := hr.d.health.Swap(h)
	if h.GetFailing() && !was.GetFailing() {
		hr.deps.Log.Error("disk reports failure", "device", hr.d.dir, "model", h.Model, "why", h.Text)
	}
}
