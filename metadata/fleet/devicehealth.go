package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// The leader drains a device if its writes, or its reads of one length, take
	// Config.SlowTimes as long as those of its peers. They must take at least
	// slowMicros, for slowFor, and the device must have at least slowPeers peers.
	// The leader then waits for slowRest before it drains another device: what
	// slows several devices at once is not in the devices.
	slowMicros = 20_000
	slowPeers  = 4
	slowFor    = 30 * time.Second
	slowRest   = 10 * time.Minute
	// slowTrust is how long a device that an administrator has set in is not judged.
	slowTrust = 24 * time.Hour
	// slowPart bounds the devices drained for slowness at a time: 1 in so many, and at least one.
	// In a cluster with disks of two kinds, all disks of the slower kind would otherwise be drained
	// one after the other.
	slowPart = 20

	reasonSlow = "it is much slower than its peers"
)

// slowKind is a kind of measured operation: 0 is writes, higher numbers are read classes.
type slowKind struct {
	device uint32
	kind   int
}

// slowness records since when devices have been slow.
type slowness struct {
	since    map[slowKind]time.Time
	byHand   map[uint32]time.Time // when an administrator set a device in
	last     time.Time            // when the last device was drained
	warnedAt time.Time            // when a host was last found slow as a whole
}

// judge returns the device to drain for slowness, 0 for none. It also returns a
// host whose devices are all equally slow, "" for none: then the host is the
// cause and no disk. A device is drained only if it was slow during the whole
// time, compared with peers that were present during the whole time.
func (s *slowness) judge(now time.Time, hosts map[string]*host, slowTimes uint64) (worst uint32, alike string) {
	var times [1 + wire.ReadClasses][]timed // of writes, and of reads
	gone, disks := 0, 0
	byHand := make(map[uint32]time.Time)
	for _, h := range hosts {
		for _, d := range h.record.Devices {
			if d.State != DeviceRetired {
				disks++
			}
			if d.State != DeviceIn && d.State != DeviceRetired && d.Reason == reasonSlow {
				gone++
			}
			if at, was := s.byHand[d.Id]; setInByHand(d) && was {
				byHand[d.Id] = at
			} else if setInByHand(d) {
				byHand[d.Id] = now
			}
			u, ok := h.usage[d.Id]
			if !ok || !h.alive || d.State != DeviceIn || u.failed {
				continue
			}
			for kind, micros := range append([]uint64{u.putMicros}, u.readMicros[:]...) {
				if micros > 0 {
					times[kind] = append(times[kind], timed{d.Id, h.record.Id, micros})
				}
			}
		}
	}
	s.byHand = byHand
	since := make(map[slowKind]time.Time)
	for kind, all := range times {
		slow, host := apart(all, slowOf(all, slowTimes))
		if host != "" {
			alike = host
		}
		for _, d := range slow {
			k := slowKind{d.device, kind}
			since[k] = now
			if at, was := s.since[k]; was {
				since[k] = at
			}
			at, trusted := byHand[d.device]
			if now.Sub(since[k]) >= slowFor && (!trusted || now.Sub(at) >= slowTrust) {
				worst = d.device
			}
		}
	}
	s.since = since
	if alike != "" && !s.warnedAt.IsZero() && now.Sub(s.warnedAt) < slowRest {
		alike = ""
	} else if alike != "" {
		s.warnedAt = now
	}
	if gone >= max(1, disks/slowPart) || (!s.last.IsZero() && now.Sub(s.last) < slowRest) {
		worst = 0
	}
	return worst, alike
}

// setInByHand reports whether an administrator set the device in. The leader records reasonBack, or
// no reason, when it brings a device in.
func setInByHand(d *wire.Device) bool {
	return d.State == DeviceIn && d.Reason != "" && d.Reason != reasonBack
}

// timed is the duration of operations of one kind on a device.
type timed struct {
	device uint32
	host   string
	micros uint64
}

// apart returns the slow devices that are alone on their host or beside others
// that are not slow. It also returns a host whose devices are all slow.
func apart(all, slow []timed) (out []timed, alike string) {
	count := func(of []timed, host string) (n int) {
		for _, d := range of {
			if d.host == host {
				n++
			}
		}
		return n
	}
	for _, d := range slow {
		if n := count(all, d.host); n > 1 && count(slow, d.host) == n {
			alike = d.host
			continue
		}
		out = append(out, d)
	}
	return out, alike
}

// slowOf returns the devices that are much slower than the median of the others. It sorts all.
func slowOf(all []timed, slowTimes uint64) (slow []timed) {
	if len(all)-1 < slowPeers {
		return nil
	}
	slices.SortFunc(all, func(a, b timed) int { return cmp.Compare(a.micros, b.micros) })
	for i, d := range all {
		peers := (len(all) - 1) / 2 // the median of the others
		if i <= peers {
			peers++
		}
		if d.micros >= slowMicros && d.micros >= slowTimes*all[min(peers, len(all)-1)].micros {
			slow = append(slow, d)
		}
	}
	return slow
}

// slowest returns the result of slowness.judge if the fleet is settled: nothing waits for repair,
// and every host is up. Otherwise the durations include the load of repairs, and the leader drains
// none. Judging then starts again.
func (t *topology) slowest(now time.Time, settled bool, slowTimes uint64) (device uint32, alike string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !settled || !t.calmLocked() {
		t.slow.since = nil
		return 0, ""
	}
	return t.slow.judge(now, t.hosts, slowTimes)
}

// letGo records that a device was drained for slowness.
func (t *topology) letGo(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slow.last = now
}

// JudgeSlow drains a device that is much slower than its peers. It does not take the device out,
// because its chunks are good and are the source of the copies.
func (f *Fleet) JudgeSlow(ctx context.Context, now time.Time) error {
	if f.cfg.SlowTimes < 0 {
		return nil
	}
	busy := true
	err := f.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		busy, err = f.Repairing(r)
		return err
	})
	if err != nil {
		return err
	}
	device, alike := f.Topology.slowest(now, !busy, uint64(f.cfg.SlowTimes))
	if alike != "" {
		f.Log.Warn("all devices of a host are slow: the host is the cause, and the leader drains none of them", "host", alike)
	}
	if device == 0 {
		return nil
	}
	set := &wire.SetDeviceState{Device: device, State: deviceDraining, Reason: reasonSlow, Keep: true}
	if err := f.setDevice(ctx, set); err != nil {
		return err
	}
	f.Topology.letGo(now)
	return nil
}

// usageOf returns a heartbeat's report on a device.
func usageOf(d *wire.Device) usage {
	u := usage{capacity: d.Capacity, used: d.Used, chunks: d.Chunks, failed: d.State == DeviceOut, distrusted: d.Distrusted,
		putMicros: d.PutMicros, corrupt: d.CorruptChunks}
	copy(u.readMicros[:], d.ReadMicros)
	if u.failed {
		u.why = d.Reason[:min(len(d.Reason), moraine.MaxNameLen)]
	}
	if s := d.Scrub; s != nil {
		u.scrub = scrubbed{lastDone: s.LastDone, lastBytes: s.LastBytes, lastBad: s.LastBad, running: s.Running, started: s.Started,
			chunks: s.Chunks, bytes: s.Bytes, bad: s.Bad, bytesPerSecond: s.BytesPerSecond}
	}
	if d.Health != nil {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.Health)
		if err == nil {
			u.health = string(b)
		}
	}
	return u
}

// describe fills in the last heartbeat's report.
func (u *usage) describe(d *wire.Device) {
	d.Capacity, d.Used, d.Chunks = u.capacity, u.used, u.chunks
	d.PutMicros, d.CorruptChunks, d.Distrusted = u.putMicros, u.corrupt, u.distrusted
	d.ReadMicros = nil
	if u.readMicros != [wire.ReadClasses]uint64{} {
		d.ReadMicros = slices.Clone(u.readMicros[:])
	}
	if u.scrub != (scrubbed{}) {
		s := u.scrub
		d.Scrub = &wire.Scrub{LastDone: s.lastDone, LastBytes: s.lastBytes, LastBad: s.lastBad, Running: s.running, Started: s.started,
			Chunks: s.chunks, Bytes: s.bytes, Bad: s.bad, BytesPerSecond: s.bytesPerSecond}
	}
	if u.health != "" {
		h := &wire.DiskHealth{}
		if proto.Unmarshal([]byte(u.health), h) == nil {
			d.Health = h
		}
	}
}

// retired reports whether a host has devices and all are retired.
func retired(h *wire.Host) bool {
	return len(h.Devices) > 0 && !slices.ContainsFunc(h.Devices, func(d *wire.Device) bool { return d.State != DeviceRetired })
}
