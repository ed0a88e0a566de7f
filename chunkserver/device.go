package chunkserver

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport/wire"
)

// device is one open device.
type device struct {
	dir  string
	uuid moraine.UUID
	// tier is the host's memory over medium.
	tier *mem.Tier
	// medium is the disk below any cache, which a scrub reads. watch measures it.
	medium keeper
	watch  *watched
	scrub  *scrubState
	again  chan struct{}                   // signalled to begin the device's report now
	settle chan struct{}                   // signalled while the metadata service records chunks of the device as in memory
	health atomic.Pointer[wire.DiskHealth] // nil if the disk does not report it
	// id is assigned at the first registration, epoch at the first registration of
	// each boot.
	id    moraine.DeviceID
	epoch atomic.Uint64
	// boots counts the registrations of this process.
	boots atomic.Uint64
	// unsettled: the last settle pass failed, and the next heartbeat begins another one.
	unsettled atomic.Bool
	// promises is the space reserved by running puts.
	promises atomic.Int64
	deleting atomic.Bool // deletions are running on it
	// reporting: a report of all its chunks is running. passes counts the finished
	// ones.
	reporting atomic.Bool
	passes    atomic.Uint64
	// leave is closed to drop the device, left once nothing uses it, and closed
	// once it is then closed.
	leave, left, closed chan struct{}
}

// fleet is all devices of the host. byID is complete once they are registered. A
// fleet never changes after that: a new one replaces it.
type fleet struct {
	devices  []*device
	byID     map[moraine.DeviceID]*device
	cluster  moraine.UUID
	memory   *mem.Memory
	nameless int // devices left out because their identity could not be read
}

// reportAgain makes every device report all its chunks now. f may be nil.
func (f *fleet) reportAgain() {
	if f == nil {
		return
	}
	for _, d := range f.devices {
		select {
		case d.again <- struct{}{}:
		default: // already signalled
		}
	}
}

func (f *fleet) close(log *slog.Logger) {
	for _, d := range f.devices {
		if err := d.tier.Close(); err != nil {
			log.Warn("device did not close cleanly", "device", d.dir, "err", err)
		}
	}
}

// describe describes the device for the metadata service.
func (d *device) describe() *wire.Device {
	u := d.tier.Usage()
	w := &wire.Device{
		Id: uint32(d.id), Uuid: d.uuid[:], Epoch: d.epoch.Load(), Capacity: u.CapacityBytes, Used: u.UsedBytes,
		Chunks: u.Chunks, State: wire.DeviceState_DEVICE_STATE_IN,
	}
	if err := d.tier.Err(); err != nil {
		w.State, w.Reason = wire.DeviceState_DEVICE_STATE_OUT, wire.Text(err.Error(), maxErrorText)
	}
	w.Distrusted = d.watch.distrust.Load() != nil
	now := d.watch.clock.Now()
	w.PutMicros, w.ReadMicros, w.CorruptChunks = d.watch.puts.micros(now), d.watch.reads.micros(now), d.watch.corrupts.Load()
	w.Scrub, w.Health = d.scrub.describe(), d.health.Load()
	return w
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 2 * time.Second
)

// retry calls fn until it succeeds, until it fails permanently, or until ctx ends.
func retry(ctx context.Context, deps *Deps, what string, fn func(context.Context) error) error {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if final(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		deps.Log.Warn("metadata request retried", "request", what, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deps.Clock.After(wait):
		}
	}
}

// final reports whether a request would fail again for the same reason at every
// retry.
func final(err error) bool {
	switch moraine.KindOf(err) {
	case moraine.WrongCluster, moraine.PermissionDenied, moraine.Unauthenticated, moraine.InvalidArgument, moraine.Unimplemented:
		return true
	}
	return false
}

// orNil replaces nil by an error of a kind that no case matches.
func orNil(err error) error {
	if err == nil {
		return moraine.Internal
	}
	return err
}
