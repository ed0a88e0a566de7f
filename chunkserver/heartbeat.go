package chunkserver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxDeletions is the most deletions of one heartbeat and of one
	// acknowledgement.
	maxDeletions = 1024
	// heartbeatTimeout limits one heartbeat, in intervals: a lost one must not
	// delay the next for long.
	heartbeatTimeout = 3
	// registerTimeout limits one registration that runs beside the heartbeats, in
	// intervals.
	registerTimeout = 2
)

// heartbeats sends a heartbeat each interval, and carries out what the answer
// requests, until ctx ends. Devices are added and dropped between two heartbeats:
// see change.
func (s *Server) heartbeats(ctx context.Context, g *errgroup.Group) {
	tick := s.deps.Clock.NewTicker(s.cfg.HeartbeatInterval)
	defer tick.Stop()
	// Deletions may take longer than an interval; the next heartbeat does not wait
	// for them.
	var deleting sync.WaitGroup
	defer deleting.Wait()
	reg := &registrar{s: s, g: g}
	defer reg.end()
	for {
		f := s.fleet.Load()
		deletions, unknown, err := s.heartbeat(ctx, f, f.deletionsWanted())
		if unknown {
			reg.want()
		}
		s.beaten.Store(err == nil)
		s.deps.Metrics.Heartbeats.WithLabelValues(outcome(err)).Inc()
		if err != nil && ctx.Err() == nil {
			s.deps.Log.Warn("heartbeat failed", "err", err)
		}
		s.beginDeletions(ctx, &deleting, f, deletions)
		// After the heartbeat, so that the leader sees the host before its
		// registration.
		reg.begin(ctx)
		if !reg.serveUntil(ctx, tick.C) {
			return
		}
	}
}

// heartbeat sends one heartbeat and returns the deletions in its answer. unknown:
// the metadata service requests a registration of the host.
func (s *Server) heartbeat(ctx context.Context, f *fleet, want uint32) (deletions []*wire.Deletion, unknown bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout*s.cfg.HeartbeatInterval)
	defer cancel()
	beat := &wire.Heartbeat{Host: s.cfg.Node, MaxDeletions: want, RevokedVersion: s.revoked.Load().Version()}
	newest := s.NewestIncarnation()
	beat.Bucket, beat.Probes = s.bucketHealth(), s.prober.results()
	beat.HeardIncarnation, beat.HeardMark = uint64(newest.Number), transport.MarkBytes(newest)
	passes := make(map[moraine.DeviceID]uint64, len(f.devices))
	for _, d := range f.devices {
		passes[d.id] = d.passes.Load()
		beat.Devices = append(beat.Devices, d.describe())
	}
	s.observe(beat.Devices, f.nameless, f.memory.Stats())
	resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: beat}})
	if err != nil {
		return nil, false, err
	}
	reply := resp.GetHeartbeat()
	if err := s.followIncarnation(transport.MarkedIncarnation(reply.GetIncarnation(), reply.GetMark())); err != nil {
		return nil, false, err
	}
	s.takeKeys(reply.GetKeys())
	if v := reply.GetRevokedVersion(); v != s.revoked.Load().Version() {
		s.revoked.Store(transport.NewRevocations(reply.GetRevoked()))
	}
	s.applied.Store(reply.GetApplied())
	s.prober.aim(reply.GetProbe())
	s.watches.Store(reply.GetWatchBucket())
	if s.pieces != nil {
		s.pieces.reports.take(reply.GetCheckObjects())
	}
	s.takeSuspects(reply.GetVerify())
	for _, id := range reply.GetScrub() {
		if d := f.byID[moraine.DeviceID(id)]; d != nil {
			d.scrub.start()
		}
	}
	for _, id := range reply.GetReport() {
		if d := f.byID[moraine.DeviceID(id)]; d != nil {
			d.askReport(passes[d.id])
		}
	}
	if reply.GetMemoryLevel() {
		s.memoryLevel.Store(true) // a feature level never falls
	}
	for _, id := range reply.GetMemory() {
		if d := f.byID[moraine.DeviceID(id)]; d != nil {
			select {
			case d.settle <- struct{}{}:
			default: // already at work
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

// deletionsWanted is how many deletions a heartbeat requests: none while every
// working device already carries out some.
func (f *fleet) deletionsWanted() uint32 {
	for _, d := range f.devices {
		if d.watch.Err() == nil && !d.deleting.Load() {
			return maxDeletions
		}
	}
	return 0
}

// beginDeletions starts the deletions of each device separately, so that a device
// that hangs or fails delays no other. A device carries out one set at a time.
// Deletions that arrive for it meanwhile are dropped, and a later heartbeat gets
// them again. Only the heartbeat loop calls it.
func (s *Server) beginDeletions(ctx context.Context, under *sync.WaitGroup, f *fleet, deletions []*wire.Deletion) {
	for d, list := range f.byDevice(deletions) {
		if !d.deleting.CompareAndSwap(false, true) {
			continue
		}
		under.Go(func() {
			defer d.deleting.Store(false)
			s.deleteOn(ctx, d, list)
		})
	}
}

// delete carries deletions out, device by device.
func (s *Server) delete(ctx context.Context, f *fleet, deletions []*wire.Deletion) {
	for d, list := range f.byDevice(deletions) {
		s.deleteOn(ctx, d, list)
	}
}

// byDevice groups deletions by device. It leaves out those for a device that is not
// on this host: the device has moved, and the metadata service did not know it.
func (f *fleet) byDevice(deletions []*wire.Deletion) map[*device][]*wire.Deletion {
	lists := map[*device][]*wire.Deletion{}
	for _, w := range deletions {
		if d := f.byID[moraine.DeviceID(w.Device)]; d != nil {
			lists[d] = append(lists[d], w)
		}
	}
	return lists
}

// deleteOn carries out deletions on their device, and acknowledges them when they
// are durable. A later heartbeat gets failed ones again.
func (s *Server) deleteOn(ctx context.Context, d *device, list []*wire.Deletion) {
	batch := make([]tiers.Deletion, len(list))
	for i, w := range list {
		batch[i] = tiers.Deletion{ID: chunkID(w.Stripe, w.Index), Below: moraine.LayoutVersion(w.Below)}
	}
	if err := d.tier.DeleteAll(ctx, batch); err != nil {
		s.deps.Log.Warn("chunk deletion failed", "device", d.dir, "err", err)
		return
	}
	s.deps.Metrics.Deleted.Add(float64(len(list)))
	s.acknowledge(ctx, list)
}

// acknowledge reports to the metadata service that chunks are gone.
func (s *Server) acknowledge(ctx context.Context, deleted []*wire.Deletion) {
	for len(deleted) > 0 {
		n := min(len(deleted), maxDeletions)
		_, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_DeletedChunks{
			DeletedChunks: &wire.DeletedChunks{Deleted: deleted[:n]}}})
		if err != nil {
			s.deps.Log.Warn("deletion acknowledgement failed", "err", err)
			return
		}
		deleted = deleted[n:]
	}
}

func chunkID(stripe uint64, index uint32) moraine.ChunkID {
	return moraine.ChunkID{Stripe: moraine.StripeID(stripe), Index: uint8(index)}
}

// outcome labels an error in metrics, by kind: few values.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return moraine.KindOf(err).String()
}

// since returns the seconds since start.
func (s *Server) since(start time.Time) float64 { return s.deps.Clock.Now().Sub(start).Seconds() }
