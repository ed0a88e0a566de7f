package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
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

// openDevices opens all devices. A disk that is missing or returns I/O errors does
// not stop the others, if at least one works. A host that is new to the cluster
// starts with all of its devices or not at all, so that a mistyped name is
// detected. On error no device is left open.
func (s *Server) openDevices(ctx context.Context, memory *mem.Memory) (*fleet, error) {
	f := &fleet{byID: map[moraine.DeviceID]*device{}, cluster: s.cfg.Cluster, memory: memory}
	s.loadIncarnation()
	fresh, err := s.introduce(ctx, f)
	if err != nil {
		return nil, err
	}
	working, broken := false, error(nil)
	var without []func() // functions that log the devices left out
	for _, cfg := range s.cfg.Devices {
		d, err := s.openDevice(cfg, f)
		if errors.Is(err, moraine.IOError) || errors.Is(err, moraine.NotFound) && !fresh {
			without = append(without, func() { s.deps.Log.Error("device left out", "device", cfg.Dir, "err", err) })
			broken = errors.Join(broken, err)
			if d == nil {
				f.nameless++
				continue // its identity cannot be read
			}
		} else if err != nil {
			f.close(s.deps.Log)
			return nil, err
		}
		f.devices = append(f.devices, d)
		working = working || err == nil
	}
	if !working {
		f.close(s.deps.Log)
		return nil, broken
	}
	for _, log := range without {
		log()
	}
	return f, nil
}

// introduce gets from the metadata service what only it knows. That is the cluster
// of the devices, if none is configured. If a directory holds no device, it is also
// whether this host is new to the cluster.
func (s *Server) introduce(ctx context.Context, f *fleet) (fresh bool, err error) {
	empty := false
	for _, cfg := range s.cfg.Devices {
		_, err := disk.ReadIdentity(s.deps.FS, cfg.Dir)
		empty = empty || errors.Is(err, moraine.NotFound)
	}
	if !empty && !f.cluster.IsZero() {
		return false, nil
	}
	err = s.retry(ctx, "cluster lookup", func(ctx context.Context) error {
		resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		if err != nil {
			return err
		}
		id := resp.GetCluster().GetCluster()
		if len(id) != len(f.cluster) {
			return &moraine.Error{Op: "chunkserver.Run", Kind: moraine.Unavailable, Err: errors.New("cluster has no identity yet: initialise the metadata service first")}
		}
		if f.cluster.IsZero() {
			f.cluster = moraine.UUID(id)
		}
		if got := moraine.UUID(id); got != f.cluster {
			return &moraine.Error{Op: "chunkserver.Run", Ref: s.cfg.Node, Kind: moraine.WrongCluster,
				Err: fmt.Errorf("devices must belong to cluster %s, but the metadata service is of cluster %s", f.cluster, got)}
		}
		fresh = !slices.ContainsFunc(resp.GetCluster().GetTopology().GetHosts(), func(h *wire.Host) bool { return h.GetId() == s.cfg.Node })
		return nil
	})
	return fresh, err
}

// openDevice opens one device. With an IOError it returns the failed device, if its
// identity can be read. NotFound: the directory holds no device, and is left as it
// is. The name may be mistyped, or the disk of the directory is not mounted. A
// device made there would be on the wrong disk, and hide the right one.
func (s *Server) openDevice(cfg DeviceConfig, f *fleet) (*device, error) {
	cluster := f.cluster
	identity, err := disk.ReadIdentity(s.deps.FS, cfg.Dir)
	if errors.Is(err, moraine.NotFound) {
		if err := disk.CheckBlank(s.deps.FS, cfg.Dir); err != nil {
			return nil, err
		}
		return nil, &moraine.Error{Op: "open device", Ref: cfg.Dir, Kind: moraine.NotFound,
			Err: fmt.Errorf("directory holds no device: correct the name, mount its disk, or make a new device with `moraine device format %s`", cfg.Dir)}
	}
	if err != nil {
		return nil, err
	}
	reads := &readTimings{}
	tier, err := disk.Open(disk.Config{Dir: cfg.Dir, Cluster: cluster, CapacityBytes: cfg.CapacityBytes, SegmentBytes: cfg.SegmentBytes}, disk.Deps{
		FS: s.deps.FS, Clock: s.deps.Clock, Pool: f.memory.Arena(), Log: s.deps.Log, Metrics: s.deps.DiskMetrics,
		ReadTook: func(bytes, others int, took time.Duration) { reads.add(s.deps.Clock.Now(), bytes, others, took) },
	})
	switch {
	case errors.Is(err, moraine.IOError):
		return s.newDevice(f, cfg.Dir, identity.Device, brokenTier{err}), err
	case err != nil:
		return nil, err
	}
	d := s.newDevice(f, cfg.Dir, identity.Device, tier)
	d.watch.reads = reads
	return d, nil
}

// newDevice stacks the watch over a disk, and the host's memory over both.
func (s *Server) newDevice(f *fleet, dir string, uuid moraine.UUID, disk keeper) *device {
	w := watch(disk, s.deps.Clock, s.cfg.CorruptLimit)
	return &device{dir: dir, uuid: uuid, tier: f.memory.Over(w, f.cluster), medium: w, watch: w, scrub: newScrubState(s.cfg.ScrubBytesPerSecond),
		again: make(chan struct{}, 1), settle: make(chan struct{}, 1), leave: make(chan struct{}), left: make(chan struct{}), closed: make(chan struct{})}
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
func (s *Server) retry(ctx context.Context, what string, fn func(context.Context) error) error {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if final(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		s.deps.Log.Warn("metadata request retried", "request", what, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.deps.Clock.After(wait):
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
