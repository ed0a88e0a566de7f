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

// watchHealth reads the health of the disks below a device repeatedly, until ctx
// ends. A disk that reports nothing now may report later.
func (s *Server) watchHealth(ctx context.Context, d *device) {
	for s.readHealth(ctx, d) && s.sleep(ctx, healthEvery) {
	}
}

// readHealth reads it once; false: ctx has ended. The read of a hanging disk stays
// in the kernel and cannot be cancelled. So it has a goroutine of its own, for
// which nothing waits when the server ends or drops the device. A device has at
// most one.
func (s *Server) readHealth(ctx context.Context, d *device) bool {
	answer := make(chan *wire.DiskHealth, 1)
	go func() { answer <- s.deps.DiskHealth(d.dir) }()
	late := s.deps.Clock.After(healthPatience)
	for {
		select {
		case h := <-answer:
			s.keepHealth(d, h)
			return true
		case <-late:
			s.deps.Log.Warn("disk health read delayed", "device", d.dir)
		case <-ctx.Done():
			return false
		}
	}
}

// keepHealth stores what the disks reported, for the next heartbeat.
func (s *Server) keepHealth(d *device, h *wire.DiskHealth) {
	was := d.health.Swap(h)
	if h.GetFailing() && !was.GetFailing() {
		s.deps.Log.Error("disk reports failure", "device", d.dir, "model", h.Model, "why", h.Text)
	}
}
