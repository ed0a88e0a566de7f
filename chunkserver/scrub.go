package chunkserver

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"
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

// scrubber scrubs one device.
type scrubber struct {
	cfg     *Config
	deps    *Deps
	meta    *metaState
	fleet   *atomic.Pointer[fleet]
	deleter *deleter
	d       *device
	limit   *rate.Limiter // of the bytes read; nil: none
}

func newScrubber(t *deviceTasks, d *device, limit *rate.Limiter) *scrubber {
	return &scrubber{cfg: t.cfg, deps: t.deps, meta: t.meta, fleet: t.fleet, deleter: t.deleter, d: d, limit: limit}
}

// scrubLimit is the limit of one loop that scrubs; nil: none.
func scrubLimit(cfg *Config) *rate.Limiter {
	if cfg.ScrubBytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(cfg.ScrubBytesPerSecond), moraine.MaxChunkSize)
}

// run reads everything on a device repeatedly, one pass each ScrubInterval,
// until ctx ends or the device is out of service. It reads every chunk from the
// medium and verifies it against its checksums. The metadata service verifies the
// chunk's header against the stripe records, and has bad chunks repaired from the
// others. After a restart of the server a pass continues from its stored position.
func (sc *scrubber) run(ctx context.Context) {
	sc.d.scrub.load(sc.deps.FS, sc.d.dir, sc.deps.Clock.Now())
	for sc.d.tier.Err() == nil {
		if sc.d.scrub.due(sc.deps.Clock.Now(), sc.cfg.ScrubInterval, sc.d.uuid) && sc.meta.applied.Load() != 0 {
			if err := sc.pass(ctx); err != nil && ctx.Err() == nil {
				sc.deps.Log.Warn("scrub interrupted", "device", sc.d.dir, "err", err)
			}
			sc.d.scrub.save(sc.deps.FS, sc.d.dir, sc.deps.Log)
		}
		select {
		case <-ctx.Done():
			return
		case <-sc.d.scrub.now:
			sc.d.scrub.ask()
		case <-sc.deps.Clock.After(scrubLook):
		}
	}
}

// pass makes one pass over a device, or the rest of one.
func (sc *scrubber) pass(ctx context.Context) error {
	from := sc.d.scrub.begin(sc.deps.Clock.Now())
	saved := sc.deps.Clock.Now()
	for {
		started := sc.meta.applied.Load()
		// A chunk that is still being written to the device is already recorded,
		// and must not count as missing.
		headers, err := sc.d.tier.List(ctx, moraine.ChunkID{Stripe: from}, scrubSlice)
		if err != nil {
			return err
		}
		headers, to := cutSlice(headers, scrubSlice)
		slice := &wire.ReportChunks{Device: uint32(sc.d.id), From: uint64(from), To: uint64(to), PassStarted: started, Scrub: true}
		if sc.deps.CheckParity != nil {
			slice.ParitySample = uint32(max(sc.cfg.ScrubParity, 0))
		}
		bytes, found, err := sc.verifySlice(ctx, slice, headers, sc.verify)
		if err != nil {
			return err
		}
		sc.d.scrub.advance(to, uint64(len(slice.Chunks)), bytes, found)
		if to == 0 {
			sc.d.scrub.end(sc.deps.Clock.Now())
			return nil
		}
		if now := sc.deps.Clock.Now(); now.Sub(saved) >= scrubSave {
			saved = now
			sc.d.scrub.save(sc.deps.FS, sc.d.dir, sc.deps.Log)
		}
		from = to
	}
}

// verifySlice verifies the chunks with these headers, and reports them as a slice of
// the device. It returns the bytes read, and how many chunks are bad or missing.
func (sc *scrubber) verifySlice(ctx context.Context, slice *wire.ReportChunks, headers []tiers.Header,
	verify func(context.Context, *tiers.Header) (*tiers.Header, error)) (bytes, found uint64, err error) {
	var bad []*wire.BadChunk
	for i := range headers {
		h := &headers[i]
		if err := sc.pace(ctx, h.Length); err != nil {
			return 0, 0, err
		}
		// The slice lists a corrupt chunk as present. It is reported
		// separately, and not as missing too.
		now, err := verify(ctx, h)
		switch {
		case errors.Is(err, moraine.Corrupt):
			sc.deps.Metrics.ScrubBad.WithLabelValues("corrupt").Inc()
			bad = append(bad, &wire.BadChunk{Stripe: uint64(h.ID.Stripe), Index: uint32(h.ID.Index), Device: uint32(sc.d.id),
				Version: uint32(h.Version), Kind: uint32(moraine.Corrupt)})
		case errors.Is(err, moraine.NotFound):
			// The chunk is still being written to the device, or was deleted
			// since it was listed.
			if _, _, err := sc.d.tier.Where(ctx, h.ID); err == nil {
				slice.Chunks = append(slice.Chunks, sc.d.reportOf(h))
			}
			continue
		case err != nil:
			return 0, 0, err
		default:
			h = now
		}
		bytes += uint64(h.Length)
		slice.Chunks = append(slice.Chunks, sc.d.reportOf(h))
	}
	found, parity, err := sc.report(ctx, slice, bad)
	if err != nil {
		return 0, 0, err
	}
	wrong, err := sc.checkParity(ctx, parity)
	if err != nil {
		return 0, 0, err
	}
	sc.deps.Metrics.ScrubChunks.Add(float64(len(slice.Chunks)))
	sc.deps.Metrics.ScrubBytes.Add(float64(bytes))
	return bytes, found + wrong, nil
}

// verify reads a whole chunk and returns its current header.
func (sc *scrubber) verify(ctx context.Context, h *tiers.Header) (*tiers.Header, error) {
	v, err := sc.d.medium.View(ctx, h.ID, 0, h.Length)
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

// report makes the metadata service verify a slice against the stripe
// records, and queue repairs of bad chunks. It returns how many chunks are bad, and
// the stripes whose parity is to be compared with their data.
func (sc *scrubber) report(ctx context.Context, slice *wire.ReportChunks, bad []*wire.BadChunk) (uint64, []*wire.Stripe, error) {
	if len(bad) > 0 {
		sc.deps.Log.Warn("scrub found bad chunks", "device", slice.Device, "chunks", len(bad))
		_, err := sc.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{
			ReportBadChunks: &wire.ReportBadChunks{Chunks: bad}}})
		if err != nil {
			return 0, nil, err
		}
	}
	resp, err := sc.deps.Meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReportChunks{ReportChunks: slice}})
	if err != nil {
		return 0, nil, err
	}
	reply := resp.GetReportChunks()
	if del := reply.GetDeletions(); len(del) > 0 {
		sc.deleter.delete(ctx, sc.fleet.Load(), del)
	}
	sc.deps.Metrics.ScrubBad.WithLabelValues("misplaced").Add(float64(reply.GetDamaged()))
	sc.deps.Metrics.ScrubBad.WithLabelValues("missing").Add(float64(reply.GetMissing()))
	return uint64(len(bad)) + reply.GetDamaged() + reply.GetMissing(), reply.GetCheckParity(), nil
}

// checkParity compares the parity of stripes with their data, and returns how many
// parity chunks are bad. It leaves a stripe that cannot be read whole now to a
// later pass.
func (sc *scrubber) checkParity(ctx context.Context, stripes []*wire.Stripe) (wrong uint64, err error) {
	for _, w := range stripes {
		scheme := moraine.Scheme{K: uint8(w.GetScheme().GetK()), M: uint8(w.GetScheme().GetM())}
		for range scheme.Chunks() {
			if err := sc.pace(ctx, scheme.ChunkLen(int64(w.GetLength()))); err != nil {
				return wrong, err
			}
		}
		found, err := sc.deps.CheckParity(ctx, w)
		if err != nil {
			sc.deps.Log.Debug("parity check skipped", "stripe", moraine.StripeID(w.GetId()), "err", err)
			continue
		}
		sc.deps.Metrics.ScrubParity.Inc()
		n := bits.OnesCount32(found)
		sc.deps.Metrics.ScrubBad.WithLabelValues("parity").Add(float64(n))
		wrong += uint64(n)
	}
	return wrong, nil
}

// pace waits until the scrub may read n more bytes and use more processor
// time.
func (sc *scrubber) pace(ctx context.Context, n int64) error {
	if err := sc.deps.Pace(ctx, 0); err != nil {
		return err
	}
	if sc.limit == nil {
		return ctx.Err()
	}
	now := sc.deps.Clock.Now()
	wait := sc.limit.ReserveN(now, int(min(n, int64(sc.limit.Burst())))).DelayFrom(now)
	if wait <= 0 {
		return ctx.Err()
	}
	if !sleep(ctx, sc.deps.Clock, wait) {
		return ctx.Err()
	}
	return nil
}
