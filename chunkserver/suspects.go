package chunkserver

import (
	"context"
	"errors"
	"math"

	"golang.org/x/time/rate"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxSuspects bounds the stripes that wait to be verified. Others are dropped: a
	// reader that still finds their chunks bad reports them again.
	maxSuspects = 256
	// wholeSample makes the metadata service sample every stripe of a slice.
	wholeSample = 10_000
)

// takeSuspects queues the chunks that clients reported to the metadata service as
// bad.
func (s *Server) takeSuspects(all []*wire.SuspectChunk) {
	for _, w := range all {
		select {
		case s.suspects <- w:
		default:
			return
		}
	}
}

// verifySuspects verifies chunks that clients reported as bad, until ctx ends, at
// the pace of a scrub. A client's report alone is no proof: only what this server
// reads from its medium and its memory is reported, and repaired.
func (s *Server) verifySuspects(ctx context.Context) {
	limit := rate.NewLimiter(rate.Inf, math.MaxInt)
	if s.cfg.ScrubBytesPerSecond > 0 {
		limit = rate.NewLimiter(rate.Limit(s.cfg.ScrubBytesPerSecond), moraine.MaxChunkSize)
	}
	for {
		var w *wire.SuspectChunk
		select {
		case <-ctx.Done():
			return
		case w = <-s.suspects:
		}
		d := s.fleet.Load().byID[moraine.DeviceID(w.Device)]
		if d == nil || d.tier.Err() != nil || s.applied.Load() == 0 {
			continue
		}
		found, err := s.verifySuspect(ctx, d, limit, w)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.deps.Log.Warn("reported chunks could not be verified", "device", d.dir, "stripe", moraine.StripeID(w.Stripe), "err", err)
			continue
		case found > 0:
			s.deps.Metrics.Suspects.WithLabelValues("bad").Inc()
		default:
			s.deps.Metrics.Suspects.WithLabelValues("good").Inc()
		}
	}
}

// verifySuspect verifies the chunks of one stripe that a device has, and reports
// the bad and the missing ones. It returns how many there are.
func (s *Server) verifySuspect(ctx context.Context, d *device, limit *rate.Limiter, w *wire.SuspectChunk) (found uint64, err error) {
	slice := &wire.ReportChunks{Device: uint32(d.id), From: w.Stripe, To: w.Stripe + 1, PassStarted: s.applied.Load(), Scrub: true}
	if w.Parity && s.deps.CheckParity != nil {
		slice.ParitySample = wholeSample
	}
	headers, err := d.tier.List(ctx, moraine.ChunkID{Stripe: moraine.StripeID(w.Stripe)}, moraine.MaxChunks)
	if err != nil {
		return 0, err
	}
	n := 0
	for n < len(headers) && headers[n].ID.Stripe == moraine.StripeID(w.Stripe) {
		n++
	}
	_, found, err = s.scrubSlice(ctx, d, limit, slice, headers[:n], s.verifyAll)
	return found, err
}

// verifyAll is verify of a chunk on the medium and of its copy in memory, which
// readers get.
func (s *Server) verifyAll(ctx context.Context, d *device, h *tiers.Header) (*tiers.Header, error) {
	found, err := s.verify(ctx, d, h)
	if err != nil && !errors.Is(err, moraine.NotFound) {
		return nil, err
	}
	v, e := d.tier.View(ctx, h.ID, 0, h.Length)
	if e == nil {
		v.Release()
	}
	if errors.Is(e, moraine.Corrupt) {
		return nil, e
	}
	return found, err
}
