package chunkserver

import (
	"context"
	"errors"
	"math/bits"
	"time"

	"golang.org/x/time/rate"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// scrubSlice is how many chunks a scrub reads before it reports them.
	scrubSlice = 256
	// scrubLook is how often the server checks whether a scrub is due, and
	// scrubSave how often a scrub stores its position.
	scrubLook, scrubSave = 10 * time.Second, time.Minute
)

// scrubs reads everything on a device repeatedly, one pass each ScrubInterval,
// until ctx ends or the device is out of service. It reads every chunk from the
// medium and verifies it against its checksums. The metadata service verifies the
// chunk's header against the stripe records, and has bad chunks repaired from the
// others. After a restart of the server a pass continues from its stored position.
func (s *Server) scrubs(ctx context.Context, d *device) {
	d.scrub.load(s.deps.FS, d.dir, s.deps.Clock.Now())
	var limit *rate.Limiter
	if s.cfg.ScrubBytesPerSecond > 0 {
		limit = rate.NewLimiter(rate.Limit(s.cfg.ScrubBytesPerSecond), moraine.MaxChunkSize)
	}
	for d.tier.Err() == nil {
		if d.scrub.due(s.deps.Clock.Now(), s.cfg.ScrubInterval, d.uuid) && s.applied.Load() != 0 {
			if err := s.scrub(ctx, d, limit); err != nil && ctx.Err() == nil {
				s.deps.Log.Warn("scrub interrupted", "device", d.dir, "err", err)
			}
			d.scrub.save(s.deps.FS, d.dir, s.deps.Log)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.scrub.now:
			d.scrub.ask()
		case <-s.deps.Clock.After(scrubLook):
		}
	}
}

// scrub makes one pass over a device, or the rest of one.
func (s *Server) scrub(ctx context.Context, d *device, limit *rate.Limiter) error {
	from := d.scrub.begin(s.deps.Clock.Now())
	saved := s.deps.Clock.Now()
	for {
		started := s.applied.Load()
		// A chunk that is still being written to the device is already recorded,
		// and must not count as missing.
		headers, err := d.tier.List(ctx, moraine.ChunkID{Stripe: from}, scrubSlice)
		if err != nil {
			return err
		}
		headers, to := cutSlice(headers, scrubSlice)
		slice := &wire.ReportChunks{Device: uint32(d.id), From: uint64(from), To: uint64(to), PassStarted: started, Scrub: true}
		if s.deps.CheckParity != nil {
			slice.ParitySample = uint32(max(s.cfg.ScrubParity, 0))
		}
		bytes, found, err := s.scrubSlice(ctx, d, limit, slice, headers, s.verify)
		if err != nil {
			return err
		}
		d.scrub.advance(to, uint64(len(slice.Chunks)), bytes, found)
		if to == 0 {
			d.scrub.end(s.deps.Clock.Now())
			return nil
		}
		if now := s.deps.Clock.Now(); now.Sub(saved) >= scrubSave {
			saved = now
			d.scrub.save(s.deps.FS, d.dir, s.deps.Log)
		}
		from = to
	}
}

// scrubSlice verifies the chunks with these headers, and reports them as a slice of
// a device. It returns the bytes read, and how many chunks are bad or missing.
func (s *Server) scrubSlice(ctx context.Context, d *device, limit *rate.Limiter, slice *wire.ReportChunks, headers []tiers.Header,
	verify func(context.Context, *device, *tiers.Header) (*tiers.Header, error)) (bytes, found uint64, err error) {
	var bad []*wire.BadChunk
	for i := range headers {
		h := &headers[i]
		if err := s.paceScrub(ctx, limit, h.Length); err != nil {
			return 0, 0, err
		}
		// The slice lists a corrupt chunk as present. It is reported
		// separately, and not as missing too.
		now, err := verify(ctx, d, h)
		switch {
		case errors.Is(err, moraine.Corrupt):
			s.deps.Metrics.ScrubBad.WithLabelValues("corrupt").Inc()
			bad = append(bad, &wire.BadChunk{Stripe: uint64(h.ID.Stripe), Index: uint32(h.ID.Index), Device: uint32(d.id),
				Version: uint32(h.Version), Kind: uint32(moraine.Corrupt)})
		case errors.Is(err, moraine.NotFound):
			// The chunk is still being written to the device, or was deleted
			// since it was listed.
			if _, _, err := d.tier.Where(ctx, h.ID); err == nil {
				slice.Chunks = append(slice.Chunks, d.reportOf(h))
			}
			continue
		case err != nil:
			return 0, 0, err
		default:
			h = now
		}
		bytes += uint64(h.Length)
		slice.Chunks = append(slice.Chunks, d.reportOf(h))
	}
	found, parity, err := s.reportScrubbed(ctx, slice, bad)
	if err != nil {
		return 0, 0, err
	}
	wrong, err := s.checkParity(ctx, limit, parity)
	if err != nil {
		return 0, 0, err
	}
	s.deps.Metrics.ScrubChunks.Add(float64(len(slice.Chunks)))
	s.deps.Metrics.ScrubBytes.Add(float64(bytes))
	return bytes, found + wrong, nil
}

// verify reads a whole chunk and returns its current header.
func (s *Server) verify(ctx context.Context, d *device, h *tiers.Header) (*tiers.Header, error) {
	v, err := d.medium.View(ctx, h.ID, 0, h.Length)
	if err != nil {
		if errors.Is(err, moraine.InvalidArgument) { // a shorter one replaced it meanwhile
			return nil, &moraine.Error{Op: "scrub", Ref: h.ID.String(), Kind: moraine.NotFound, Err: err}
		}
		return nil, err
	}
	defer v.Release()
	now := v.Header
	return &now, nil
}

// reportScrubbed makes the metadata service verify a slice against the stripe
// records, and queue repairs of bad chunks. It returns how many chunks are bad, and
// the stripes whose parity is to be compared with their data.
func (s *Server) reportScrubbed(ctx context.Context, slice *wire.ReportChunks, bad []*wire.BadChunk) (uint64, []*wire.Stripe, error) {
	if len(bad) > 0 {
		s.deps.Log.Warn("scrub found bad chunks", "device", slice.Device, "chunks", len(bad))
		_, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{
			ReportBadChunks: &wire.ReportBadChunks{Chunks: bad}}})
		if err != nil {
			return 0, nil, err
		}
	}
	resp, err := s.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: slice}})
	if err != nil {
		return 0, nil, err
	}
	reply := resp.GetReportChunks()
	if del := reply.GetDeletions(); len(del) > 0 {
		s.delete(ctx, s.fleet.Load(), del)
	}
	s.deps.Metrics.ScrubBad.WithLabelValues("misplaced").Add(float64(reply.GetDamaged()))
	s.deps.Metrics.ScrubBad.WithLabelValues("missing").Add(float64(reply.GetMissing()))
	return uint64(len(bad)) + reply.GetDamaged() + reply.GetMissing(), reply.GetCheckParity(), nil
}

// checkParity compares the parity of stripes with their data, and returns how many
// parity chunks are bad. It leaves a stripe that cannot be read whole now to a
// later pass.
func (s *Server) checkParity(ctx context.Context, limit *rate.Limiter, stripes []*wire.Stripe) (wrong uint64, err error) {
	for _, w := range stripes {
		scheme := moraine.Scheme{K: uint8(w.GetScheme().GetK()), M: uint8(w.GetScheme().GetM())}
		for range scheme.Chunks() {
			if err := s.paceScrub(ctx, limit, scheme.ChunkLen(int64(w.GetLength()))); err != nil {
				return wrong, err
			}
		}
		found, err := s.deps.CheckParity(ctx, w)
		if err != nil {
			s.deps.Log.Debug("parity check skipped", "stripe", moraine.StripeID(w.GetId()), "err", err)
			continue
		}
		s.deps.Metrics.ScrubParity.Inc()
		n := bits.OnesCount32(found)
		s.deps.Metrics.ScrubBad.WithLabelValues("parity").Add(float64(n))
		wrong += uint64(n)
	}
	return wrong, nil
}

// paceScrub waits until the scrub may read n more bytes and use more processor
// time.
func (s *Server) paceScrub(ctx context.Context, limit *rate.Limiter, n int64) error {
	if err := s.deps.Pace(ctx, 0); err != nil {
		return err
	}
	if limit == nil {
		return ctx.Err()
	}
	now := s.deps.Clock.Now()
	wait := limit.ReserveN(now, int(min(n, int64(limit.Burst())))).DelayFrom(now)
	if wait <= 0 {
		return ctx.Err()
	}
	if !s.sleep(ctx, wait) {
		return ctx.Err()
	}
	return nil
}
