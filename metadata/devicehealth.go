package metadata

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// readClasses is how many kinds of reads a device's server tells the times of.
	readClasses = 4
	// A device whose puts, or whose reads of one length, take slowTimes as long as those of
	// its peers, and at least slowMicros, for slowFor, is taken out, where there are
	// slowPeers to hold it against. Another one is not judged before slowRest has passed: what makes
	// several devices slow at once is not the devices.
	slowTimes  = 10
	slowMicros = 20_000
	slowPeers  = 4
	slowFor    = 30 * time.Second
	slowRest   = 10 * time.Minute
	// slowPart is which part of all devices may be out for it at a time: 1 of so
	// many, and one in any case. Of a cluster with disks of two kinds the slower kind
	// would all go otherwise, one after the other.
	slowPart = 20

	reasonSlow = "it is ten times slower than its peers"
)

// slowness is since when devices have been slow.
type slowness struct {
	since map[uint32]time.Time
	last  time.Time // that one was taken out
}

// judge returns the device that is to be taken out for being slow, 0 for none.
func (s *slowness) judge(now time.Time, hosts map[string]*host) uint32 {
	var times [1 + readClasses][]timed // of puts, and of reads
	out, disks := 0, 0
	for _, h := range hosts {
		for _, d := range h.record.Devices {
			if d.State != deviceRetired {
				disks++
			}
			if d.State == deviceOut && d.Reason == reasonSlow {
				out++
			}
			u, ok := h.usage[d.Id]
			if !ok || !h.alive || d.State != deviceIn || u.failed {
				continue
			}
			for kind, micros := range append([]uint64{u.putMicros}, u.readMicros[:]...) {
				if micros > 0 {
					times[kind] = append(times[kind], timed{d.Id, micros})
				}
			}
		}
	}
	since := make(map[uint32]time.Time)
	var worst uint32
	for _, all := range times {
		for _, device := range slowOf(all) {
			since[device] = now
			if at, was := s.since[device]; was {
				since[device] = at
			}
			if now.Sub(since[device]) >= slowFor {
				worst = device
			}
		}
	}
	s.since = since
	if worst == 0 || out >= max(1, disks/slowPart) || (!s.last.IsZero() && now.Sub(s.last) < slowRest) {
		return 0
	}
	s.last = now
	return worst
}

// timed is how long the operations of one kind take on a device.
type timed struct {
	device uint32
	micros uint64
}

// slowOf returns the devices that are much slower than the median of the others. It sorts.
func slowOf(all []timed) (slow []uint32) {
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
			slow = append(slow, d.device)
		}
	}
	return slow
}

// usageOf is what a heartbeat says of a device.
func usageOf(d *wire.Device) usage {
	u := usage{capacity: d.Capacity, used: d.Used, chunks: d.Chunks, failed: d.State == deviceOut, distrusted: d.Distrusted,
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

// describe fills in what the last heartbeat said.
func (u *usage) describe(d *wire.Device) {
	d.Capacity, d.Used, d.Chunks = u.capacity, u.used, u.chunks
	d.PutMicros, d.CorruptChunks, d.Distrusted = u.putMicros, u.corrupt, u.distrusted
	d.ReadMicros = nil
	if u.readMicros != [readClasses]uint64{} {
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
	return len(h.Devices) > 0 && !slices.ContainsFunc(h.Devices, func(d *wire.Device) bool { return d.State != deviceRetired })
}
