package chunkserver

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// reportSlice is how many chunks one report holds.
	reportSlice = 4096
	// reportPause and reportChunkTime set the pause between two passes of a device:
	// a minute, and 10 ms for each chunk.
	reportPause     = time.Minute
	reportChunkTime = 10 * time.Millisecond
)

// pace is the pause after a pass over a device with so many chunks. Reports are
// how the chunks of failed writes, or of dead writers, are found and deleted. A
// device that a failed save has filled must not wait an hour for its space.
// Each chunk of a pass costs the metadata service time. So this allows at most
// 100 chunks per second, unless interval, the longest pause, demands more.
func pace(interval time.Duration, chunks uint64) time.Duration {
	most := uint64(interval / reportChunkTime)
	return min(interval, reportPause+time.Duration(min(chunks, most))*reportChunkTime)
}

// reporter reports the chunks of one device.
type reporter struct {
	cfg     *Config
	deps    *Deps
	meta    *metaState
	fleet   *atomic.Pointer[fleet]
	deleter *deleter
	d       *device
}

// run reports all chunks of a device repeatedly, until ctx ends or the device
// is out of service.
func (r *reporter) run(ctx context.Context) {
	for r.d.tier.Err() == nil {
		// The metadata service judges a pass by the state under which it began. So
		// there must have been a heartbeat since the metadata has its incarnation.
		for r.meta.applied.Load() == 0 {
			if !sleep(ctx, r.deps.Clock, r.cfg.HeartbeatInterval/4) {
				return
			}
		}
		r.d.reporting.Store(true)
		err := r.report(ctx)
		r.d.passes.Add(1)
		r.d.reporting.Store(false)
		if err != nil && ctx.Err() == nil {
			r.deps.Log.Warn("device report interrupted", "device", r.d.dir, "err", err)
			if !sleep(ctx, r.deps.Clock, min(r.cfg.ReportInterval, 10*r.cfg.HeartbeatInterval)) {
				return
			}
			continue
		}
		if !r.rest(ctx, pace(r.cfg.ReportInterval, r.d.tier.Usage().Chunks)) {
			return
		}
	}
}

// rest waits until the next report of a device is due. It also returns when the
// metadata has another incarnation, which does not know the contents of the device.
// It returns false when ctx has ended.
func (r *reporter) rest(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-r.d.again:
	case <-r.deps.Clock.After(pause):
	}
	return true
}

// askReport makes a device begin a report at once, since the leader lacks one.
// passes is how many had ended when the leader answered. A pass that has ended
// since, or still runs, may already be that report.
func (d *device) askReport(passes uint64) {
	if d.reporting.Load() || d.passes.Load() != passes {
		return
	}
	select {
	case d.again <- struct{}{}:
	default: // already requested
	}
}

// report makes one pass over a device.
func (r *reporter) report(ctx context.Context) error {
	incarnation := uint64(r.meta.newest().Number)
	started := r.meta.applied.Load()
	for from := moraine.StripeID(0); ; {
		headers, err := r.d.tier.List(ctx, moraine.ChunkID{Stripe: from}, reportSlice)
		if err != nil {
			return err
		}
		headers, to := cutSlice(headers, reportSlice)
		req := &wire.ReportChunks{Device: uint32(r.d.id), From: uint64(from), To: uint64(to), PassStarted: started, Incarnation: incarnation}
		for _, h := range headers {
			req.Chunks = append(req.Chunks, r.d.reportOf(&h))
		}
		resp, err := r.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: req}})
		if err != nil {
			return err
		}
		r.deps.Metrics.Reported.Add(float64(len(headers)))
		if del := resp.GetReportChunks().GetDeletions(); len(del) > 0 {
			r.deleter.delete(ctx, r.fleet.Load(), del)
		}
		if cut := moraine.StripeID(resp.GetReportChunks().GetTo()); cut != 0 {
			to = cut // one answer cannot hold all missing chunks
		}
		if to == 0 {
			return nil
		}
		from = to
	}
}

// reportOf describes a chunk for a report. The chunk was listed before, so a chunk
// that is written behind meanwhile is on the device by now.
func (d *device) reportOf(h *tiers.Header) *wire.ChunkReport {
	return &wire.ChunkReport{Memory: d.tier.Dirty(h.ID), Stripe: uint64(h.ID.Stripe), Index: uint32(h.ID.Index), Version: uint32(h.Version), Crc: h.CRC, Length: uint64(h.Length)}
}

// cutSlice decides where a slice of a report ends: all chunks of a stripe on one
// device go into one slice. to is the first stripe of the next slice, or 0 if there
// is none. limit is how many chunks were requested.
func cutSlice(headers []tiers.Header, limit int) (slice []tiers.Header, to moraine.StripeID) {
	if len(headers) < limit {
		return headers, 0
	}
	last := headers[len(headers)-1].ID.Stripe
	n := len(headers)
	for n > 0 && headers[n-1].ID.Stripe == last {
		n--
	}
	// A stripe has at most moraine.MaxChunks chunks, so n is not 0.
	return headers[:n], last
}

// sleep waits, and reports whether ctx is still alive.
func sleep(ctx context.Context, clock clock.Clock, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-clock.After(d):
		return true
	}
}
