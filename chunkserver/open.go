package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport/wire"
)

// opener opens and closes the devices of the host.
type opener struct {
	cfg  *Config
	deps *Deps
	meta *metaState
}

// openAll opens all devices. A disk that is missing or returns I/O errors does
// not stop the others, if at least one works. A host that is new to the cluster
// starts with all of its devices or not at all, so that a mistyped name is
// detected. On error no device is left open.
func (o *opener) openAll(ctx context.Context, memory *mem.Memory) (*fleet, error) {
	f := &fleet{byID: map[moraine.DeviceID]*device{}, cluster: o.cfg.Cluster, memory: memory}
	o.meta.loadIncarnation()
	fresh, err := o.introduce(ctx, f)
	if err != nil {
		return nil, err
	}
	working, broken := false, error(nil)
	var without []func() // functions that log the devices left out
	for _, cfg := range o.cfg.Devices {
		d, err := o.open(cfg, f)
		if errors.Is(err, moraine.IOError) || errors.Is(err, moraine.NotFound) && !fresh {
			without = append(without, func() { o.deps.Log.Error("device left out", "device", cfg.Dir, "err", err) })
			broken = errors.Join(broken, err)
			if d == nil {
				f.nameless++
				continue // its identity cannot be read
			}
		} else if err != nil {
			f.close(o.deps.Log)
			return nil, err
		}
		f.devices = append(f.devices, d)
		working = working || err == nil
	}
	if !working {
		f.close(o.deps.Log)
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
func (o *opener) introduce(ctx context.Context, f *fleet) (fresh bool, err error) {
	empty := false
	for _, cfg := range o.cfg.Devices {
		_, err := disk.ReadIdentity(o.deps.FS, cfg.Dir)
		empty = empty || errors.Is(err, moraine.NotFound)
	}
	if !empty && !f.cluster.IsZero() {
		return false, nil
	}
	err = retry(ctx, o.deps, "cluster lookup", func(ctx context.Context) error {
		resp, err := o.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
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
			return &moraine.Error{Op: "chunkserver.Run", Ref: o.cfg.Node, Kind: moraine.WrongCluster,
				Err: fmt.Errorf("devices must belong to cluster %s, but the metadata service is of cluster %s", f.cluster, got)}
		}
		fresh = !slices.ContainsFunc(resp.GetCluster().GetTopology().GetHosts(), func(h *wire.Host) bool { return h.GetId() == o.cfg.Node })
		return nil
	})
	return fresh, err
}

// open opens one device. With an IOError it returns the failed device, if its
// identity can be read. NotFound: the directory holds no device, and is left as it
// is. The name may be mistyped, or the disk of the directory is not mounted. A
// device made there would be on the wrong disk, and hide the right one.
func (o *opener) open(cfg DeviceConfig, f *fleet) (*device, error) {
	cluster := f.cluster
	identity, err := disk.ReadIdentity(o.deps.FS, cfg.Dir)
	if errors.Is(err, moraine.NotFound) {
		if err := disk.CheckBlank(o.deps.FS, cfg.Dir); err != nil {
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
		FS: o.deps.FS, Clock: o.deps.Clock, Pool: f.memory.Arena(), Log: o.deps.Log, Metrics: o.deps.DiskMetrics,
		ReadTook: func(bytes, others int, took time.Duration) { reads.add(o.deps.Clock.Now(), bytes, others, took) },
	})
	switch {
	case errors.Is(err, moraine.IOError):
		return o.stack(f, cfg.Dir, identity.Device, brokenTier{err}), err
	case err != nil:
		return nil, err
	}
	d := o.stack(f, cfg.Dir, identity.Device, tier)
	d.watch.reads = reads
	return d, nil
}

// stack stacks the watch over a disk, and the host's memory over both.
func (o *opener) stack(f *fleet, dir string, uuid moraine.UUID, disk keeper) *device {
	w := watch(disk, o.deps.Clock, o.cfg.CorruptLimit)
	return &device{dir: dir, uuid: uuid, tier: f.memory.Over(w, f.cluster), medium: w, watch: w, scrub: newScrubState(o.cfg.ScrubBytesPerSecond),
		again: make(chan struct{}, 1), settle: make(chan struct{}, 1), leave: make(chan struct{}), left: make(chan struct{}), closed: make(chan struct{})}
}

func (o *opener) close(d *device) {
	if err := d.tier.Close(); err != nil {
		o.deps.Log.Warn("device did not close cleanly", "device", d.dir, "err", err)
	}
}
