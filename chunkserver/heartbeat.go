package chunkserver

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers/mem"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// heartbeatTimeout limits one heartbeat, in intervals: a lost one must not
	// delay the next for long.
	heartbeatTimeout = 3
	// registerTimeout limits one registration that runs beside the heartbeats, in
	// intervals.
	registerTimeout = 2
)

// heart sends the heartbeats, and hands out what their answers request.
type heart struct {
	cfg       *Config
	deps      *Deps
	meta      *metaState
	fleet     *atomic.Pointer[fleet]
	deleter   *deleter
	registrar *registrar
	prober    *prober
	bucket    *bucketWatch
	suspects  *suspects
	pieces    *pieces     // nil without a bucket
	beaten    atomic.Bool // the last heartbeat was answered
	// seen is the state of the memory at the last update of Metrics. Only the
	// heartbeat loop uses it.
	seen mem.Stats
}

// run sends a heartbeat each interval, and carries out what the answer
// requests, until ctx ends. Devices are added and dropped between two heartbeats:
// see change.
func (h *heart) run(ctx context.Context, g *errgroup.Group) {
	tick := h.deps.Clock.NewTicker(h.cfg.HeartbeatInterval)
	defer tick.Stop()
	// Deletions may take longer than an interval; the next heartbeat does not wait
	// for them.
	var deleting sync.WaitGroup
	defer deleting.Wait()
	reg := h.registrar
	reg.g = g
	defer reg.end()
	for {
		f := h.fleet.Load()
		deletions, unknown, err := h.beat(ctx, f, f.deletionsWanted())
		if unknown {
			reg.want()
		}
		h.beaten.Store(err == nil)
		h.deps.Metrics.Heartbeats.WithLabelValues(outcome(err)).Inc()
		if err != nil && ctx.Err() == nil {
			h.deps.Log.Warn("heartbeat failed", "err", err)
		}
		h.deleter.begin(ctx, &deleting, f, deletions)
		// After the heartbeat, so that the leader sees the host before its
		// registration.
		reg.begin(ctx)
		if !reg.serveUntil(ctx, tick.C) {
			return
		}
	}
}

// beat sends one heartbeat and returns the deletions in its answer. unknown:
// the metadata service requests a registration of the host.
func (h *heart) beat(ctx context.Context, f *fleet, want uint32) (deletions []*wire.Deletion, unknown bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout*h.cfg.HeartbeatInterval)
	defer cancel()
	beat := &wire.Heartbeat{Host: h.cfg.Node, MaxDeletions: want, RevokedVersion: h.meta.revoked.Load().Version()}
	newest := h.meta.newest()
	beat.Bucket, beat.Probes = h.bucket.health(), h.prober.results()
	beat.SeenIncarnation, beat.SeenMark = uint64(newest.Number), transport.MarkBytes(newest)
	passes := make(map[moraine.DeviceID]uint64, len(f.devices))
	for _, d := range f.devices {
		passes[d.id] = d.passes.Load()
		beat.Devices = append(beat.Devices, d.describe())
	}
	h.observe(beat.Devices, f.nameless, f.memory.Stats())
	resp, err := h.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Heartbeat{Heartbeat: beat}})
	if err != nil {
		return nil, false, err
	}
	reply := resp.GetHeartbeat()
	if err := h.meta.followIncarnation(transport.MarkedIncarnation(reply.GetIncarnation(), reply.GetMark())); err != nil {
		return nil, false, err
	}
	h.meta.takeKeys(reply.GetKeys())
	if v := reply.GetRevokedVersion(); v != h.meta.revoked.Load().Version() {
		h.meta.revoked.Store(transport.NewRevocations(reply.GetRevoked()))
	}
	h.meta.applied.Store(reply.GetApplied())
	h.prober.aim(reply.GetProbe())
	h.bucket.chosen.Store(reply.GetWatchBucket())
	if h.pieces != nil {
		h.pieces.reports.take(reply.GetCheckObjects())
	}
	h.suspects.take(reply.GetVerify())
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
	f.settle(reply.GetMemory())
	return reply.GetDeletions(), reply.GetRegister(), nil
}

func (h *heart) observe(devices []*wire.Device, out int, now mem.Stats) {
	var used, chunks uint64
	for _, d := range devices {
		used, chunks = used+d.Used, chunks+d.Chunks
		if d.State == wire.DeviceState_DEVICE_STATE_OUT {
			out++
		}
	}
	m := h.deps.Metrics
	m.DeviceBytes.Set(float64(used))
	m.DeviceChunks.Set(float64(chunks))
	m.DevicesOut.Set(float64(out))
	m.MemoryBytes.Set(float64(now.Arena.InUseBytes - now.CleanBytes))
	m.MemoryDirty.Set(float64(now.DirtyBytes))
	m.MemoryDeferred.Set(float64(now.DeferredBytes))
	m.DeferredWrites.Add(float64(now.Pressed - h.seen.Pressed))
	m.MemoryKept.Set(float64(now.CleanBytes))
	m.MemoryWaits.Add(float64(now.Arena.Waits - h.seen.Arena.Waits))
	m.MemoryHits.Add(float64(now.Hits - h.seen.Hits))
	m.MemoryMisses.Add(float64(now.Misses - h.seen.Misses))
	m.MemoryEvictions.Add(float64(now.Evictions - h.seen.Evictions))
	h.seen = now
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
