package chunkserver

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxDeletions is how many deletions one heartbeat asks for, and one
	// acknowledgement holds.
	maxDeletions = 1024
	// heartbeatTimeout bounds one heartbeat, in intervals: a lost one must not
	// hold up the next for long.
	heartbeatTimeout = 3
	// registerTimeout bounds one registration that is made beside the heartbeats, in
	// intervals.
	registerTimeout = 2
)

// heartbeats tells the service each interval that the host is alive, and does
// what it answers, until ctx ends. Devices come and go between two of them: see change.
func (s *Server) heartbeats(ctx context.Context, g *errgroup.Group) {
	tick := s.deps.Clock.NewTicker(s.cfg.HeartbeatInterval)
	defer tick.Stop()
	// Deletions may take longer than an interval; the next heartbeat does not
	// wait for them, and asks for more only when they are done.
	deleting := make(chan struct{}, 1)
	done := make(chan struct{})
	work := make(chan []*wire.Deletion)
	go func() {
		defer close(done)
		for deletions := range work {
			s.delete(ctx, s.fleet.Load(), deletions)
			<-deleting
		}
	}()
	defer func() { close(work); <-done }()
	reg := &registrar{s: s, g: g}
	defer reg.end()
	for {
		want := uint32(0)
		select {
		case deleting <- struct{}{}:
			want = maxDeletions
		default:
		}
		deletions, unknown, err := s.heartbeat(ctx, s.fleet.Load(), want)
		if unknown {
			reg.want()
		}
		s.beaten.Store(err == nil)
		s.deps.Metrics.Heartbeats.WithLabelValues(outcome(err)).Inc()
		if err != nil && ctx.Err() == nil {
			s.deps.Log.Warn("heartbeat failed", "err", err)
		}
		if want > 0 {
			if len(deletions) > 0 {
				work <- deletions
			} else {
				<-deleting
			}
		}
		// After the heartbeat: so the host was heard of before it is told of anew.
		reg.begin(ctx)
		if !reg.serveUntil(ctx, tick.C) {
			return
		}
	}
}

// heartbeat sends one heartbeat and returns the deletions it was answered with. unknown:
// the service asks that the host be registered.
func (s *Server) heartbeat(ctx context.Context, f *fleet, want uint32) (deletions []*wire.Deletion, unknown bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout*s.cfg.HeartbeatInterval)
	defer cancel()
	beat := &wire.Heartbeat{Host: s.cfg.Node, MaxDeletions: want}
	heard := s.Heard()
	beat.HeardIncarnation, beat.HeardMark = uint64(heard.Number), transport.MarkBytes(heard)
	for _, d := range f.devices {
		beat.Devices = append(beat.Devices, d.describe())
	}
	s.observe(beat.Devices, f.nameless, f.memory.Stats())
	resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: beat}})
	if err != nil {
		return nil, false, err
	}
	reply := resp.GetHeartbeat()
	if err := s.hear(transport.MarkedIncarnation(reply.GetIncarnation(), reply.GetMark())); err != nil {
		return nil, false, err
	}
	s.takeKeys(reply.GetKeys())
	s.applied.Store(reply.GetApplied())
	for _, id := range reply.GetScrub() {
		if d := f.byID[moraine.DeviceID(id)]; d != nil {
			d.scrub.start()
		}
	}
	if reply.GetMemoryLevel() {
		s.memoryLevel.Store(true) // a feature level never falls
	}
	for _, id := range reply.GetMemory() {
		if d := f.byID[moraine.DeviceID(id)]; d != nil {
			select {
			case d.settle <- struct{}{}:
			default: // it is at it
			}
		}
	}
	return reply.GetDeletions(), reply.GetRegister(), nil
}

func (s *Server) observe(devices []*wire.Device, out int, now mem.Stats) {
	var used, chunks uint64
	for _, d := range devices {
		used, chunks = used+d.Used, chunks+d.Chunks
		if d.State == wire.DeviceState_DEVICE_STATE_OUT {
			out++
		}
	}
	m := s.deps.Metrics
	m.DeviceBytes.Set(float64(used))
	m.DeviceChunks.Set(float64(chunks))
	m.DevicesOut.Set(float64(out))
	m.MemoryBytes.Set(float64(now.Arena.InUseBytes - now.CleanBytes))
	m.MemoryDirty.Set(float64(now.DirtyBytes))
	m.MemoryKept.Set(float64(now.CleanBytes))
	m.MemoryWaits.Add(float64(now.Arena.Waits - s.seen.Arena.Waits))
	m.MemoryHits.Add(float64(now.Hits - s.seen.Hits))
	m.MemoryMisses.Add(float64(now.Misses - s.seen.Misses))
	m.MemoryEvictions.Add(float64(now.Evictions - s.seen.Evictions))
	s.seen = now
}

// delete carries deletions out, device by device, and acknowledges those that
// are durably gone. What fails is asked for again by a later heartbeat.
func (s *Server) delete(ctx context.Context, f *fleet, deletions []*wire.Deletion) {
	byDevice := map[moraine.DeviceID][]*wire.Deletion{}
	for _, d := range deletions {
		byDevice[moraine.DeviceID(d.Device)] = append(byDevice[moraine.DeviceID(d.Device)], d)
	}
	for id, list := range byDevice {
		d := f.byID[id]
		if d == nil {
			continue // not ours: the service was misled by a device that moved
		}
		batch := make([]tiers.Deletion, len(list))
		for i, w := range list {
			batch[i] = tiers.Deletion{ID: chunkID(w.Stripe, w.Index), Below: moraine.LayoutVersion(w.Below)}
		}
		if err := d.tier.DeleteAll(ctx, batch); err != nil {
			s.deps.Log.Warn("could not delete chunks; they will be asked for again", "device", d.dir, "err", err)
			continue
		}
		s.deps.Metrics.Deleted.Add(float64(len(list)))
		s.acknowledge(ctx, list)
	}
}

// acknowledge tells the service that chunks are gone.
func (s *Server) acknowledge(ctx context.Context, deleted []*wire.Deletion) {
	for len(deleted) > 0 {
		n := min(len(deleted), maxDeletions)
		_, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{
			DeletedChunks: &wire.DeletedChunks{Deleted: deleted[:n]}}})
		if err != nil {
			s.deps.Log.Warn("could not acknowledge deletions; they will be asked for again", "err", err)
			return
		}
		deleted = deleted[n:]
	}
}

func chunkID(stripe uint64, index uint32) moraine.ChunkID {
	return moraine.ChunkID{Stripe: moraine.StripeID(stripe), Index: uint8(index)}
}

// outcome labels an error in metrics: few values, by kind.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return moraine.KindOf(err).String()
}

// since returns the seconds since start.
func (s *Server) since(start time.Time) float64 { return s.deps.Clock.Now().Sub(start).Seconds() }
