package chunkserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

// Devices come and go while the server runs. Who registers the host is the loop of
// heartbeats alone: of two registrations at once the older would declare out what the
// newer one had added. So a change is made ready by SetDevices, which may take as long as
// it takes to open a device, and handed to the loop, which registers the host with it
// until the service has answered, and then serves by it. What was let go is closed last,
// when the service knows that it is not here any more.

// change is a set of devices to come and to go. Once it is handed over it is the loop's:
// see registrar.
type change struct {
	add, drop []*device
	want      []DeviceConfig
	done      chan struct{} // closed when the host serves by it, or never will
	err       error         // why it never will
}

// closeWait is how long SetDevices waits for what was let go to be closed: a disk that
// hangs, as the one that is replaced may, must not keep others out for ever.
const closeWait = 30 * time.Second

// SetDevices has the running server serve the devices that are named, and no others: a
// directory that is new must be a device already, as at a start of a known host; one that
// is named no more, or holds another disk by now, is let go and closed, so that its file
// system can be unmounted. A device that counts is not let go: it must be out or retired
// (drained and empty is not enough: chunks may be on it whose commit is still to come);
// nor is what cannot be used taken. The error names each device that was left as it was, or
// is not closed yet, and why; the others have changed. It returns when the service knows of
// the change, or has refused it, or ctx has ended: then the change goes on. One call at a
// time.
func (s *Server) SetDevices(ctx context.Context, want []DeviceConfig) error {
	cfg := s.cfg
	cfg.Devices = want
	if err := cfg.validate(); err != nil {
		return err
	}
	f := s.fleet.Load()
	if f == nil {
		return &moraine.Error{Op: "set devices", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("the devices are not registered yet")}
	}
	drop, kept := s.surplus(ctx, f, want)
	// What is new comes first: what is let go may take long to close. Only what takes the
	// place of that, or is the same disk below another directory, must wait for it.
	now, later := s.apart(f, want)
	add, refused := s.openNew(f, now)
	kept = errors.Join(kept, refused)
	drop, refused, err := s.handAll(ctx, &change{add: add, drop: drop, want: want})
	kept = errors.Join(kept, refused)
	if err != nil {
		return errors.Join(kept, err)
	}
	kept = errors.Join(kept, s.awaitClosed(ctx, drop))
	if ctx.Err() != nil {
		return kept
	}
	if f = s.fleet.Load(); f == nil {
		return errors.Join(kept, s.ending())
	}
	add, refused = s.openNew(f, later)
	kept = errors.Join(kept, refused)
	_, refused, err = s.handAll(ctx, &change{add: add, want: want})
	return errors.Join(kept, refused, err)
}

// handAll has the host serve by a change. Where the service refuses what it says, each
// device of it comes or goes by itself, so that one that is refused leaves the others. It
// returns those that were let go, and names those that were refused; err: nothing more can
// be done now.
func (s *Server) handAll(ctx context.Context, c *change) (dropped []*device, refused, err error) {
	err = s.hand(ctx, c)
	if err == nil {
		return c.drop, nil, nil
	}
	if !errors.Is(err, moraine.InvalidArgument) || len(c.add)+len(c.drop) < 2 || ctx.Err() != nil {
		return nil, nil, err
	}
	part := func(dir string, one *change) (bool, error) {
		err := s.hand(ctx, one)
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
		case <-d.closed: // it can be opened again
		default:
			refused = errors.Join(refused, stillOpen(d))
			continue
		}
		f := s.fleet.Load()
		if f == nil {
			return dropped, refused, s.ending()
		}
		i := slices.IndexFunc(c.want, func(w DeviceConfig) bool { return w.Dir == d.dir })
		anew, bad := s.openNew(f, c.want[i:i+1])
		refused = errors.Join(refused, bad)
		if _, err := part(d.dir, &change{add: anew, want: c.want}); err != nil {
			return dropped, refused, err
		}
	}
	return dropped, refused, nil
}

// apart tells the devices that can be opened now from those at the directory of one that is
// served, or that are served below another directory.
func (s *Server) apart(f *fleet, want []DeviceConfig) (now, later []DeviceConfig) {
	for _, c := range want {
		identity, err := disk.ReadIdentity(s.deps.FS, c.Dir)
		if slices.ContainsFunc(f.devices, func(d *device) bool { return d.dir == c.Dir || err == nil && d.uuid == identity.Device }) {
			later = append(later, c)
			continue
		}
		now = append(now, c)
	}
	return now, later
}

// awaitClosed waits until devices that were let go are closed. The error names those that
// are not within closeWait; they are closed as soon as their disks answer.
func (s *Server) awaitClosed(ctx context.Context, drop []*device) (open error) {
	if len(drop) == 0 {
		return nil
	}
	late := s.deps.Clock.After(s.closeWait)
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
	return &moraine.Error{Op: "let a device go", Ref: d.dir, Kind: moraine.Busy,
		Err: errors.New("it is not served, but its disk does not answer: it is closed, and its file system can be unmounted, when it does")}
}

// surplus returns the devices of f that are to be let go and may be. The error names those
// that may not.
func (s *Server) surplus(ctx context.Context, f *fleet, want []DeviceConfig) (drop []*device, refused error) {
	var known map[moraine.UUID]*wire.Device
	for _, d := range f.devices {
		if slices.ContainsFunc(want, func(c DeviceConfig) bool { return c.Dir == d.dir }) && !s.replaced(d) {
			continue
		}
		if known == nil {
			var err error
			if known, err = s.knownDevices(ctx); err != nil {
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

// replaced reports whether another device is in the directory of one by now.
func (s *Server) replaced(d *device) bool {
	identity, err := disk.ReadIdentity(s.deps.FS, d.dir)
	return err == nil && identity.Device != d.uuid
}

// knownDevices are the devices of this host, as the service knows them.
func (s *Server) knownDevices(ctx context.Context) (map[moraine.UUID]*wire.Device, error) {
	resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return nil, err
	}
	out := make(map[moraine.UUID]*wire.Device)
	for _, h := range resp.GetCluster().GetTopology().GetHosts() {
		if h.GetId() != s.cfg.Node {
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

// mayLeave returns why a device must not be let go, or nil; known is nil where the
// service has it on another host, or not at all.
func mayLeave(d *device, known *wire.Device) error {
	switch known.GetState() {
	case wire.DeviceState_DEVICE_STATE_OUT, wire.DeviceState_DEVICE_STATE_RETIRED, wire.DeviceState_DEVICE_STATE_UNSPECIFIED:
		return nil
	}
	return &moraine.Error{Op: "let a device go", Ref: d.dir, Kind: moraine.Conflict,
		Err: fmt.Errorf("what it holds counts: drain it first (`moraine device set %d draining`) and retire it once nothing is on it (`moraine device set %d retired`), or, to carry its disk to another host, set it out (`moraine device set %d out`)", d.id, d.id, d.id)}
}

// openNew opens the devices that are named and not served yet. The error names those that
// cannot be used.
func (s *Server) openNew(f *fleet, want []DeviceConfig) (add []*device, refused error) {
	for _, c := range want {
		if slices.ContainsFunc(f.devices, func(d *device) bool { return d.dir == c.Dir }) {
			continue
		}
		d, err := s.openDevice(c, f)
		same := func(o *device) bool { return o.uuid == d.uuid }
		if err == nil && slices.ContainsFunc(f.devices, same) {
			err = &moraine.Error{Op: "open device", Ref: c.Dir, Kind: moraine.Busy, Err: errors.New("it is served from another directory")}
		}
		if i := slices.IndexFunc(add, same); err == nil && i >= 0 {
			err = &moraine.Error{Op: "open device", Ref: c.Dir, Kind: moraine.Conflict,
				Err: fmt.Errorf("it is a copy of the device in %s: one device can be there once, so empty one of the two and format it anew", add[i].dir)}
		}
		if err == nil {
			add = append(add, d)
			continue
		}
		refused = errors.Join(refused, err)
		if d != nil {
			s.closeDevice(d)
		}
	}
	return add, refused
}

func (s *Server) closeDevice(d *device) {
	if err := d.tier.Close(); err != nil {
		s.deps.Log.Warn("device did not close cleanly", "device", d.dir, "err", err)
	}
}

func (s *Server) ending() error {
	return &moraine.Error{Op: "set devices", Ref: s.cfg.Node, Kind: moraine.Unavailable, Err: errors.New("shutting down")}
}

// hand gives a change to the loop of heartbeats, and waits until the host serves by it.
func (s *Server) hand(ctx context.Context, c *change) error {
	if len(c.add) == 0 && len(c.drop) == 0 {
		return nil
	}
	c.done = make(chan struct{})
	select {
	case s.changes <- c:
	case <-s.ended:
		c.abandon(s)
		return s.ending()
	case <-ctx.Done():
		c.abandon(s)
		return ctx.Err()
	}
	select {
	case <-c.done:
		if c.err != nil {
			return c.err
		}
		for _, d := range c.add {
			s.deps.Log.Info("took a device", "device", d.dir, "id", d.id)
		}
		return nil
	case <-s.ended:
		return s.ending()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon closes what a change would have added.
func (c *change) abandon(s *Server) {
	for _, d := range c.add {
		s.closeDevice(d)
	}
}

// refuse ends a change that will never be served by, when what it would have added is
// closed, or closeWait has passed. It returns at once: a disk that hangs while it is closed
// holds up no heartbeat.
func (c *change) refuse(ctx context.Context, s *Server, g *errgroup.Group, err error) {
	for _, d := range c.add {
		g.Go(func() error {
			s.closeDevice(d)
			close(d.closed)
			return nil
		})
	}
	g.Go(func() error {
		c.err = errors.Join(err, s.awaitClosed(ctx, c.add))
		close(c.done)
		return nil
	})
}

// fleet is what is served by the change, where old is served now.
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
		if d.id != 0 { // by a registration that failed after that
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

// serveBy serves by a change that the host is registered with: by the time that the
// service has chunks put on what is new, it is found here.
func (s *Server) serveBy(ctx context.Context, g *errgroup.Group, f *fleet, c *change) {
	for _, d := range c.add {
		d.tier.Admit()
		g.Go(func() error { return s.tend(ctx, d) })
	}
	s.fleet.Store(f)
	for _, d := range c.drop {
		close(d.leave)
		g.Go(func() error {
			<-d.left
			s.closeDevice(d)
			s.deps.Log.Info("let a device go: its file system may be unmounted", "device", d.dir, "id", d.id)
			close(d.closed)
			return nil
		})
	}
	close(c.done)
}

// tend does what a device needs while it is served, until ctx ends or it is let go, and
// returns when all of it has ended. An error names what was acknowledged in memory and
// could not be written.
func (s *Server) tend(ctx context.Context, d *device) error {
	defer close(d.left)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return d.tier.Run(ctx) })
	for _, work := range []func(context.Context, *device){s.reports, s.scrubs, s.watchHealth, s.settles} {
		g.Go(func() error { work(ctx, d); return nil })
	}
	g.Go(func() error {
		select {
		case <-d.leave:
			cancel()
		case <-ctx.Done():
		}
		return nil
	})
	err := g.Wait()
	select {
	case <-d.leave: // nothing on it counts
		if err != nil {
			s.deps.Log.Warn("not all that was in memory reached a device that is let go", "device", d.dir, "err", err)
		}
		return nil
	default:
		return err
	}
}
