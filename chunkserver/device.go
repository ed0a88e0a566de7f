package chunkserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

// device is one open device.
type device struct {
	dir  string
	uuid moraine.UUID
	tier keeper
	// id is given at the first registration, epoch at the first of each boot.
	id    moraine.DeviceID
	epoch atomic.Uint64
}

// fleet is all devices of the host. byID is complete once they are registered,
// and does not change then.
type fleet struct {
	devices     []*device
	byID        map[moraine.DeviceID]*device
	cluster     moraine.UUID
	incarnation moraine.Incarnation
}

func (f *fleet) close(log *slog.Logger) {
	for _, d := range f.devices {
		if err := d.tier.Close(); err != nil {
			log.Warn("device did not close cleanly", "device", d.dir, "err", err)
		}
	}
}

// openDevices formats the devices that are new and opens all. A disk that answers
// with I/O errors does not stop the others, if there is one that works. On error
// none is left open.
func (s *Server) openDevices(ctx context.Context) (*fleet, error) {
	f := &fleet{byID: map[moraine.DeviceID]*device{}, cluster: s.cfg.Cluster}
	if f.cluster.IsZero() {
		if err := s.learnCluster(ctx, f); err != nil {
			return nil, err
		}
	}
	working, broken := false, error(nil)
	for _, cfg := range s.cfg.Devices {
		d, err := s.openDevice(cfg, f.cluster)
		if errors.Is(err, moraine.IOError) {
			s.deps.Log.Error("device does not work; serving without it", "device", cfg.Dir, "err", err)
			broken = err
			if d == nil {
				continue // not even its name can be read
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
	return f, nil
}

// learnCluster asks the service whose it is, until it answers.
func (s *Server) learnCluster(ctx context.Context, f *fleet) error {
	return s.retry(ctx, "ask for the cluster", func(ctx context.Context) error {
		resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		if err != nil {
			return err
		}
		id := resp.GetCluster().GetCluster()
		if len(id) != len(f.cluster) {
			return &moraine.Error{Op: "chunkserver.Run", Kind: moraine.Unavailable, Err: errors.New("the cluster has no identity yet")}
		}
		f.cluster = moraine.UUID(id)
		return nil
	})
}

// openDevice opens one device. With an IOError it returns the device that is out
// of service, if its identity can be read.
func (s *Server) openDevice(cfg DeviceConfig, cluster moraine.UUID) (*device, error) {
	identity, err := disk.ReadIdentity(s.deps.FS, cfg.Dir)
	if errors.Is(err, moraine.NotFound) {
		if identity, err = disk.Format(s.deps.FS, cfg.Dir, cluster, rand.Reader); err == nil {
			s.deps.Log.Info("formatted a new device", "device", cfg.Dir, "cluster", cluster)
		}
	}
	if err != nil {
		return nil, err
	}
	tier, err := disk.Open(disk.Config{Dir: cfg.Dir, Cluster: cluster, CapacityBytes: cfg.CapacityBytes, SegmentBytes: cfg.SegmentBytes}, disk.Deps{
		FS: s.deps.FS, Clock: s.deps.Clock, Pool: s.pool, Log: s.deps.Log, Metrics: s.deps.DiskMetrics,
	})
	switch {
	case errors.Is(err, moraine.IOError):
		return &device{dir: cfg.Dir, uuid: identity.Device, tier: brokenTier{err}}, err
	case err != nil:
		return nil, err
	}
	return &device{dir: cfg.Dir, uuid: identity.Device, tier: tier}, nil
}

// describe is the device as the service is told of it.
func (d *device) describe() *wire.Device {
	u := d.tier.Usage()
	w := &wire.Device{
		Id: uint32(d.id), Uuid: d.uuid[:], Epoch: d.epoch.Load(), Capacity: u.CapacityBytes, Used: u.UsedBytes,
		Chunks: u.Chunks, State: wire.DeviceState_DEVICE_STATE_IN,
	}
	if err := d.tier.Err(); err != nil {
		w.State, w.Reason = wire.DeviceState_DEVICE_STATE_OUT, err.Error()
	}
	return w
}

const (
	minRetry = 100 * time.Millisecond
	maxRetry = 2 * time.Second
)

// retry calls fn until it succeeds, fails for good, or ctx ends.
func (s *Server) retry(ctx context.Context, what string, fn func(context.Context) error) error {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		err := fn(ctx)
		switch moraine.KindOf(orNil(err)) {
		case moraine.WrongCluster, moraine.PermissionDenied, moraine.Unauthenticated, moraine.InvalidArgument, moraine.Unimplemented:
			return fmt.Errorf("%s: %w", what, err)
		}
		if err == nil {
			return nil
		}
		s.deps.Log.Warn("the metadata service does not answer; trying again", "request", what, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.deps.Clock.After(wait):
		}
	}
}

// orNil makes a nil error a kind that no case is about.
func orNil(err error) error {
	if err == nil {
		return moraine.Internal
	}
	return err
}
