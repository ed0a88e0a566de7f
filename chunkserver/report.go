package chunkserver

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// reportSlice is how many chunks are reported at once.
	reportSlice = 4096
	// reportPause and reportChunkTime pace the passes of a device: between two of
	// them is a minute, and 10 ms for each chunk.
	reportPause     = time.Minute
	reportChunkTime = 10 * time.Millisecond
)

// pace is how long after a pass over a device of so many chunks the next begins.
// A report is how the chunks of writes that failed, or whose writer died, are found
// and deleted: a device that a failed save has filled must not wait an hour for its
// room. What a pass costs the service is by the chunk, so this is at most 100 of
// them judged a second, unless interval, which is the longest pause, asks for more.
func pace(interval time.Duration, chunks uint64) time.Duration {
	most := uint64(interval / reportChunkTime)
	return min(interval, reportPause+time.Duration(min(chunks, most))*reportChunkTime)
}

// reports tells the service all that a device holds, again and again, until ctx
// ends or the device is out of service.
func (s *Server) reports(ctx context.Context, d *device) {
	for d.tier.Err() == nil {
		// The service judges a pass by the state that it began under, so there must
		// have been a heartbeat since the metadata is of its incarnation.
		for s.applied.Load() == 0 {
			if !s.sleep(ctx, s.cfg.HeartbeatInterval/4) {
				return
			}
		}
		d.reporting.Store(true)
		err := s.report(ctx, d)
		d.passes.Add(1)
		d.reporting.Store(false)
		if err != nil && ctx.Err() == nil {
			s.deps.Log.Warn("the report of a device was not finished; the next begins anew", "device", d.dir, "err", err)
			if !s.sleep(ctx, min(s.cfg.ReportInterval, 10*s.cfg.HeartbeatInterval)) {
				return
			}
			continue
		}
		if !s.rest(ctx, d, pace(s.cfg.ReportInterval, d.tier.Usage().Chunks)) {
			return
		}
	}
}

// rest waits until the next report of a device is due, or the metadata is of another
// incarnation, which does not know what the device holds. It returns false when ctx has
// ended.
func (s *Server) rest(ctx context.Context, d *device, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-d.again:
	case <-s.deps.Clock.After(pause):
	}
	return true
}

// askReport has a device begin a report at once, as the leader lacks one. passes is how many
// had ended when the leader was asked: one that has ended since, or is under way, may be the
// one that it lacks.
func (d *device) askReport(passes uint64) {
	if d.reporting.Load() || d.passes.Load() != passes {
		return
	}
	select {
	case d.again <- struct{}{}:
	default: // it is asked for already
	}
}

// report makes one pass over a device.
func (s *Server) report(ctx context.Context, d *device) error {
	incarnation := uint64(s.Incarnation())
	started := s.applied.Load()
	for from := moraine.StripeID(0); ; {
		headers, err := d.tier.List(ctx, moraine.ChunkID{Stripe: from}, reportSlice)
		if err != nil {
			return err
		}
		headers, to := cutSlice(headers, reportSlice)
		req := &wire.ReportChunks{Device: uint32(d.id), From: uint64(from), To: uint64(to), PassStarted: started, Incarnation: incarnation}
		for _, h := range headers {
			req.Chunks = append(req.Chunks, d.reportOf(&h))
		}
		resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: req}})
		if err != nil {
			return err
		}
		s.deps.Metrics.Reported.Add(float64(len(headers)))
		if del := resp.GetReportChunks().GetDeletions(); len(del) > 0 {
			s.delete(ctx, s.fleet.Load(), del)
		}
		if cut := moraine.StripeID(resp.GetReportChunks().GetTo()); cut != 0 {
			to = cut // too much is missing for one answer
		}
		if to == 0 {
			return nil
		}
		from = to
	}
}

// reportOf describes a chunk for a report. It was listed before, so that one which is written
// out meanwhile is on the device by now.
func (d *device) reportOf(h *tiers.Header) *wire.ChunkReport {
	return &wire.ChunkReport{Memory: d.tier.Dirty(h.ID), Stripe: uint64(h.ID.Stripe), Index: uint32(h.ID.Index), Version: uint32(h.Version), Crc: h.CRC, Length: uint64(h.Length)}
}

// cutSlice decides where a slice of a report ends: all chunks of a stripe that
// one device holds go into one slice. to is the first stripe of the next slice,
// 0 where there is none. limit is how many were asked for.
func cutSlice(headers []tiers.Header, limit int) (slice []tiers.Header, to moraine.StripeID) {
	if len(headers) < limit {
		return headers, 0
	}
	last := headers[len(headers)-1].ID.Stripe
	n := len(headers)
	for n > 0 && headers[n-1].ID.Stripe == last {
		n--
	}
	// A stripe has at most moraine.MaxChunks chunks, so that n is not 0.
	return headers[:n], last
}

// sleep waits, and reports whether ctx is still alive.
func (s *Server) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.deps.Clock.After(d):
		return true
	}
}
