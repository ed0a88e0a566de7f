package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

// Devices come and go while the server runs. Only the heartbeat loop registers the
// host: of two concurrent registrations, the older would mark as out what the newer
// had added.
//
// SetDevices prepares a change, which takes as long as opening a device does, and
// hands it to the loop. The loop registers the host with the change until the
// metadata service has answered. Then the server uses the new set of devices.
// Dropped devices are closed last, once the metadata service knows that they are
// not here.

// deviceChanges changes the set of devices of the running server. Only one call of
// set runs at a time. It has no lock: the channel hands each change over.
type deviceChanges struct {
	cfg    *Config
	deps   *Deps
	fleet  *atomic.Pointer[fleet]
	opener *opener
	// queue has the devices to add and drop; ended is closed when Run returns.
	queue chan *change
	ended chan struct{}
	// closeWait is the constant closeWait, except in tests.
	closeWait time.Duration
}

// change is a set of devices to add and to drop. After the handover the loop owns
// it: see registrar.
type change struct {
	add, drop []*device
	want      []DeviceConfig
	done      chan struct{} // closed when the change is in use, or never will be
	err       error         // why it never will be
}

// closeWait is how long SetDevices waits until dropped devices are closed. A disk
// that hangs, as one that is being replaced may, must not block other changes for
// ever.
const closeWait = 30 * time.Second

// set is SetDevices.
func (dc *deviceChanges) set(ctx context.Context, want []DeviceConfig) error {
	cfg := *dc.cfg
	cfg.Devices = want
	if err := cfg.validate(); err != nil {
		return err
	}
	f := dc.fleet.Load()
	if f == nil {
		return &moraine.Error{Op: "set devices", Ref: dc.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("devices are not registered yet: try again later")}
	}
	drop, kept := dc.surplus(ctx, f, want)
	// New devices come first: dropped ones may take long to close. Only a device
	// that replaces a dropped one, or is the same disk below another directory,
	// must wait for it.
	now, later := dc.apart(f, want)
	add, refused := dc.openNew(f, now)
	kept = errors.Join(kept, refused)
	drop, refused, err := dc.handAll(ctx, &change{add: add, drop: drop, want: want})
	kept = errors.Join(kept, refused)
	if err != nil {
		return errors.Join(kept, err)
	}
	kept = errors.Join(kept, dc.awaitClosed(ctx, drop))
	if ctx.Err() != nil {
		return kept
	}
	if f = dc.fleet.Load(); f == nil {
		return errors.Join(kept, dc.ending())
	}
	add, refused = dc.openNew(f, later)
	kept = errors.Join(kept, refused)
	_, refused, err = dc.handAll(ctx, &change{add: add, want: want})
	return errors.Join(kept, refused, err)
}

// handAll applies a change. If the metadata service refuses it, each device of the
// change is tried by itself, so that one refused device does not stop the others.
// It returns the dropped devices and the refused ones. err: no further change is
// possible now.
func (dc *deviceChanges) handAll(ctx context.Context, c *change) (dropped []*device, refused, err error) {
	err = dc.hand(ctx, c)
	if err == nil {
		return c.drop, nil, nil
	}
	if !errors.Is(err, moraine.InvalidArgument) || len(c.add)+len(c.drop) < 2 || ctx.Err() != nil {
		return nil, nil, err
	}
	part := func(dir string, one *change) (bool, error) {
		err := dc.hand(ctx, one)
		if errors.Is(err, moraine.InvalidArgument) {
			refused = errors.Join(refused, &moraine.Error{Op: "change devices", Ref: dir, Kind: moraine.InvalidArgument, Err: err})
			return false, nil
		}
		return err == nil, err
	}
	for _, d := range c.drop {
		done, err := part(d.dir, &change{drop: []*device{d}, want: c.want})
		if err != nil {
			return dropped, refused, err
		}
		if done {
			dropped = append(dropped, d)
		}
	}
	for _, d := range c.add {
		select {
		case <-d.closed: // it can be reopened
		default:
			refused = errors.Join(refused, stillOpen(d))
			continue
		}
		f := dc.fleet.Load()
		if f == nil {
			return dropped, refused, dc.ending()
		}
		i := slices.IndexFunc(c.want, func(w DeviceConfig) bool { return w.Dir == d.dir })
		opened, bad := dc.openNew(f, c.want[i:i+1])
		refused = errors.Join(refused, bad)
		if _, err := part(d.dir, &change{add: opened, want: c.want}); err != nil {
			return dropped, refused, err
		}
	}
	return dropped, refused, nil
}

// apart separates the devices that can be opened now from the others. The others
// are in the directory of a device in use, or are in use below another directory.
func (dc *deviceChanges) apart(f *fleet, want []DeviceConfig) (now, later []DeviceConfig) {
	for _, c := range want {
		identity, err := disk.ReadIdentity(dc.deps.FS, c.Dir)
		if slices.ContainsFunc(f.devices, func(d *device) bool { return d.dir == c.Dir || err == nil && d.uuid == identity.Device }) {
			later = append(later, c)
			continue
		}
		now = append(now, c)
	}
	return now, later
}

// awaitClosed waits until dropped devices are closed. The error names those that
// are not closed within closeWait; they are closed as soon as their disks answer.
func (dc *deviceChanges) awaitClosed(ctx context.Context, drop []*device) (open error) {
	if len(drop) == 0 {
		return nil
	}
	late := dc.deps.Clock.After(dc.closeWait)
	for i, d := range drop {
		select {
		case <-d.closed:
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
		}
		for _, d := range drop[i:] {
			select {
			case <-d.closed:
			default:
				open = errors.Join(open, stillOpen(d))
			}
		}
		return open
	}
	return nil
}

func stillOpen(d *device) error {
	return &moraine.Error{Op: "drop device", Ref: d.dir, Kind: moraine.Busy,
		Err: errors.New("device is not in use, but its disk does not answer: wait until it is closed before you unmount its file system")}
}

// surplus returns the devices of f that are to be dropped and may be. The error
// names those that may not.
func (dc *deviceChanges) surplus(ctx context.Context, f *fleet, want []DeviceConfig) (drop []*device, refused error) {
	var known map[moraine.UUID]*wire.Device
	for _, d := range f.devices {
		if slices.ContainsFunc(want, func(c DeviceConfig) bool { return c.Dir == d.dir }) && !dc.replaced(d) {
			continue
		}
		if known == nil {
			var err error
			if known, err = dc.knownDevices(ctx); err != nil {
				return nil, err
			}
		}
		if err := mayLeave(d, known[d.uuid]); err != nil {
			refused = errors.Join(refused, err)
			continue
		}
		drop = append(drop, d)
	}
	return drop, refused
}

// replaced reports whether the directory of a device now holds another device.
func (dc *deviceChanges) replaced(d *device) bool {
	identity, err := disk.ReadIdentity(dc.deps.FS, d.dir)
	return err == nil && identity.Device != d.uuid
}

// knownDevices returns the devices of this host that the metadata service knows.
func (dc *deviceChanges) knownDevices(ctx context.Context) (map[moraine.UUID]*wire.Device, error) {
	resp, err := dc.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return nil, err
	}
	out := make(map[moraine.UUID]*wire.Device)
	for _, h := range resp.GetCluster().GetTopology().GetHosts() {
		if h.GetId() != dc.cfg.Node {
			continue
		}
		for _, d := range h.GetDevices() {
			if len(d.GetUuid()) == len(moraine.UUID{}) {
				out[moraine.UUID(d.GetUuid())] = d
			}
		}
	}
	return out, nil
}

// mayLeave returns why a device must not be dropped, or nil. known is nil if the
// metadata service has the device on another host, or not at all.
func mayLeave(d *device, known *wire.Device) error {
	switch known.GetState() {
	case wire.DeviceState_DEVICE_STATE_OUT, wire.DeviceState_DEVICE_STATE_RETIRED, wire.DeviceState_DEVICE_STATE_UNSPECIFIED:
		return nil
	}
	return &moraine.Error{Op: "drop device", Ref: d.dir, Kind: moraine.Conflict,
		Err: fmt.Errorf("device is still in service: drain it first (`moraine device set %d draining`) and, once it is empty, retire it (`moraine device set %d retired`). To move its disk to another host, set it out (`moraine device set %d out`)", d.id, d.id, d.id)}
}

// openNew opens the listed devices that are not in use yet. The error names those
// that cannot be used.
func (dc *deviceChanges) openNew(f *fleet, want []DeviceConfig) (add []*device, refused error) {
	for _, c := range want {
		if slices.ContainsFunc(f.devices, func(d *device) bool { return d.dir == c.Dir }) {
			continue
		}
		d, err := dc.opener.open(c, f)
		same := func(o *device) bool { return o.uuid == d.uuid }
		if err == nil && slices.ContainsFunc(f.devices, same) {
			err = &moraine.Error{Op: "open device", Ref: c.Dir, Kind: moraine.Busy, Err: errors.New("device is already in use from another directory")}
		}
		if i := slices.IndexFunc(add, same); err == nil && i >= 0 {
			err = &moraine.Error{Op: "open device", Ref: c.Dir, Kind: moraine.Conflict,
				Err: fmt.Errorf("device is a copy of the one in %s: empty one of the two directories and format it again", add[i].dir)}
		}
		if err == nil {
			add = append(add, d)
			continue
		}
		refused = errors.Join(refused, err)
		if d != nil {
			dc.opener.close(d)
		}
	}
	return add, refused
}

func (dc *deviceChanges) ending() error {
	return &moraine.Error{Op: "set devices", Ref: dc.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("shutting down")}
}

// hand gives a change to the heartbeat loop, and waits until the change is in use.
func (dc *deviceChanges) hand(ctx context.Context, c *change) error {
	if len(c.add) == 0 && len(c.drop) == 0 {
		return nil
	}
	c.done = make(chan struct{})
	select {
	case dc.queue <- c:
	case <-dc.ended:
		c.abandon(dc.opener)
		return dc.ending()
	case <-ctx.Done():
		c.abandon(dc.opener)
		return ctx.Err()
	}
	select {
	case <-c.done:
		if c.err != nil {
			return c.err
		}
		for _, d := range c.add {
			dc.deps.Log.Info("device added", "device", d.dir, "id", d.id)
		}
		return nil
	case <-dc.ended:
		return dc.ending()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon closes the devices that a change would have added.
func (c *change) abandon(o *opener) {
	for _, d := range c.add {
		o.close(d)
	}
}

// refuse ends a change that will never be used, once the devices that it would have
// added are closed or closeWait has passed. It returns at once: a disk that hangs
// during its close delays no heartbeat.
func (c *change) refuse(ctx context.Context, dc *deviceChanges, g *errgroup.Group, err error) {
	for _, d := range c.add {
		g.Go(func() error {
			dc.opener.close(d)
			close(d.closed)
			return nil
		})
	}
	g.Go(func() error {
		c.err = errors.Join(err, dc.awaitClosed(ctx, c.add))
		close(c.done)
		return nil
	})
}

// fleet is the fleet after the change, where old is in use now.
func (c *change) fleet(old *fleet) *fleet {
	f := &fleet{cluster: old.cluster, memory: old.memory, byID: make(map[moraine.DeviceID]*device)}
	for _, d := range old.devices {
		if !slices.Contains(c.drop, d) {
			f.devices = append(f.devices, d)
			f.byID[d.id] = d
		}
	}
	f.devices = append(f.devices, c.add...)
	for _, d := range c.add {
		if d.id != 0 { // set by a registration that failed afterwards
			f.byID[d.id] = d
		}
	}
	for _, w := range c.want {
		if !slices.ContainsFunc(f.devices, func(d *device) bool { return d.dir == w.Dir }) {
			f.nameless++
		}
	}
	return f
}
