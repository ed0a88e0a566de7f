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
	// A device whose puts take slowTimes as long as those of its peers, and at
	// least slowMicros, for slowFor, is taken out, where there are slowPeers to hold
	// it against. Another one is not judged before slowRest has passed: what makes
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
	type timed struct {
		device uint32
		micros uint64
	}
	var all []timed
	out, disks := 0, 0
	for _, h := range hosts {
		for _, d := range h.record.Devices {
			if d.State != deviceRetired {
				disks++
			}
			if d.State == deviceOut && d.Reason == reasonSlow {
				out++
			}
			if u, ok := h.usage[d.Id]; ok && h.alive && d.State == deviceIn && !u.failed && u.putMicros > 0 {
				all = append(all, timed{d.Id, u.putMicros})
			}
		}
	}
	slices.SortFunc(all, func(a, b timed) int { return cmp.Compare(a.micros, b.micros) })
	since := make(map[uint32]time.Time)
	var worst uint32
	for i, d := range all {
		if len(all)-1 < slowPeers || d.micros < slowMicros {
			continue
		}
		peers := (len(all) - 1) / 2 // the median of the others
		if i <= peers {
			peers++
		}
		if d.micros < slowTimes*all[min(peers, len(all)-1)].micros {
			continue
		}
		since[d.device] = now
		if at, was := s.since[d.device]; was {
			since[d.device] = at
		}
		if now.Sub(since[d.device]) >= slowFor {
			worst = d.device
		}
	}
	s.since = since
	if worst == 0 || out >= max(1, disks/slowPart) || (!s.last.IsZero() && now.Sub(s.last) < slowRest) {
		return 0
	}
	s.last = now
	return worst
}

// usageOf is what a heartbeat says of a device.
func usageOf(d *wire.Device) usage {
	u := usage{capacity: d.Capacity, used: d.Used, chunks: d.Chunks, failed: d.State == deviceOut, distrusted: d.Distrusted,
		putMicros: d.PutMicros, corrupt: d.CorruptChunks}
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
